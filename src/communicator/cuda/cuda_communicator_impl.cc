#include "communicator/cuda/cuda_communicator_impl.h"

#include <algorithm>
#include <limits>
#include <new>
#include <utility>

#include "algorithm/cuda/kernels.h"
#include "algorithm/plan/verdict_store.h"
#include "algorithm/user/algorithm_source.h"
#include "base/collective_traits.h"
#include "base/release.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/cuda/cuda_memory_impl.h"
#include "communicator/cuda/device_failure.h"
#include "communicator/cuda/gpu_settings.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/leftovers.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/stream_capture.h"
#include "tutti/config.h"

namespace tutti::cuda {
namespace {

// Loads every kernel on the current device: loading one later, beside a kernel that waits for a peer, would wait for
// it.
void load_kernels() {
  for (const void* kernel : all_kernels()) {
    cudaFuncAttributes attributes{};
    check_cuda(cudaFuncGetAttributes(&attributes, kernel), "cudaFuncGetAttributes");
  }
}

std::shared_ptr<GpuGroup> make_group(const BootstrapPtr& bootstrap, const CudaOptions& options, int device,
                                     const PlanFiles& plans, const Tuning& tuning, std::uint64_t first_sequence) {
  const int size = bootstrap->size();
  const DeviceGuard guard(device);
  load_kernels();
  GpuGroupRequest request;
  request.device = device;
  request.transport = options.config->cuda_transport;
  request.secret = options.config->secret;
  request.timeout = options.timeout;
  request.probe_kernel = probe_kernel();
  request.first_sequence = first_sequence;
  request.max_blocks = options.config->cuda_max_blocks;
  request.messages_only = options.messages_only;
  request.settings = gpu_settings(size, options, plans, tuning);
  return std::make_shared<GpuGroup>(bootstrap, request);
}

// A rank that only sends messages chooses nothing.
Tuning load_tuning_of(const CudaOptions& options, int size) {
  return options.messages_only ? Tuning() : load_tuning(*options.config, size, TunedDevice::kGpu);
}

std::uint64_t to_ns(std::chrono::milliseconds timeout) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 1'000'000;
  return static_cast<std::uint64_t>(std::clamp<std::int64_t>(timeout.count(), 1, kMost)) * 1'000'000;
}

constexpr std::string_view kMessagesName = "messages";

// Memory for the boards of all ranks. It only makes messages of failures better: without it the group works. Only
// collectives are posted there.
std::shared_ptr<SymmetricMemory> make_board(const GpuGroup& group, int size, bool messages_only) {
  if (size == 1 || messages_only) return nullptr;
  const DeviceGuard guard(group.device());
  try {
    return group.allocate_on_host("board", CallBoard::kBytes);
  } catch (const Error& e) {
    if (e.kind() != ErrorKind::kUnsupported) throw;  // unsupported: so for all ranks
    return nullptr;
  }
}
std::vector<std::byte*> tables_of(const SymmetricMemory* memory, int size) {
  std::vector<std::byte*> tables;
  for (int r = 0; memory != nullptr && r < size; ++r) tables.push_back(memory->host(r));
  return tables;
}

}  // namespace

CudaCommunicatorImpl::CudaCommunicatorImpl(const BootstrapPtr& bootstrap, const CudaOptions& options, int device,
                                           std::uint64_t first_sequence)
    : rank_(bootstrap->rank()),
      size_(bootstrap->size()),
      options_(options),
      config_(*options_.config),
      forced_(parse_forced(config_.cuda_algorithm)),
      compile_mode_(parse_compile_mode(config_.cuda_compile)),
      logger_(parse_log_level(config_.log_level), rank_),
      plan_files_(load_plans(config_.plan_path, size_, cache_folder(config_))),
      tuning_(load_tuning_of(options, size_)),
      group_(make_group(bootstrap, options, device, plan_files_, tuning_, first_sequence)),
      shared_board_(make_board(*group_, size_, options.messages_only)),
      board_(rank_, tables_of(shared_board_.get(), size_)),
      log_(rank_, size_, config_.flight_recorder_entries, first_sequence, group_->control(),
           [this](RankState& state) { return group_->read_state(state); }),
      collectives_(options.lasting_streams),
      messages_(options.lasting_streams),
      own_stream_(device) {
  set_timeout(options.timeout);
  early_launches_ = may_launch_early();
  if (!plan_files_.files.empty()) {
    std::vector<UserAlgorithmPtr> plans;
    for (const PlanFile& file : plan_files_.files) plans.push_back(plan_algorithm(file));
    const std::vector<std::uint64_t> admitted = admit(plans, false);
    if (plans_ != nullptr) plans_->table().set_files(admitted);  // a rank on its own has none
  }
  use_tuning();
  if (forced_ && forced_->copy_engine) {
    const DeviceGuard guard(device);
    copy_streams_.prepare(rank_);
  }
  quiet_ = {device, &mutex_, [this] { return idle(); },
            [this] {
              if (plans_ != nullptr) plans_->compiled_plans().load();
            }};
  QuietDevice::of_process().add(&quiet_);
}

CudaCommunicatorImpl::~CudaCommunicatorImpl() {
  {
    const std::lock_guard lock(life_->mutex);
    life_->over = true;
  }
  // Of graphs that are gone, since nobody may ask for it later. Under no lock, as where a group is made.
  const auto release_graphs = [this] { give_back_on(group_->device(), [] { release_retired(); }); };
  release_graphs();
  finish();  // kernels under way read this rank's memory: their waits are bounded, so this is
  QuietDevice::of_process().remove(&quiet_);
  // Graphs may keep the plans, but nothing of the program's, and no thread that compiles.
  if (plans_ != nullptr) {
    static_cast<void>(plans_->table().install({}, nullptr));
    plans_->compiled_plans().end_compiling();
  }
  // And copies of ports.
  for (const auto& [region, number] : port_memories_) group_->ports().proxy().remove(number, {});
  shared_board_.reset();
  registrations_.clear();
  release_graphs();
  give_back_mappings();  // their owners may free it when all have destroyed the communicator
  QuietDevice::of_process().give_back_if_quiet();
}

std::uint64_t CudaCommunicatorImpl::sequence() const noexcept { return sequence_.load(std::memory_order_relaxed); }

std::chrono::milliseconds CudaCommunicatorImpl::timeout() const noexcept {
  return std::chrono::milliseconds(device::load_relaxed(&group_->control().timeout_ns) / 1'000'000);
}

void CudaCommunicatorImpl::set_timeout(std::chrono::milliseconds timeout) {
  check_group_timeout(options_.name, timeout);
  device::store_relaxed(&group_->control().timeout_ns, to_ns(timeout));
}

void CudaCommunicatorImpl::abort(const std::string& reason) noexcept {
  // The word first, by nobody's leave: it ends the kernels that others may be waiting for.
  device::store_relaxed(&group_->control().abort, 1);
  const std::lock_guard lock(reason_mutex_);
  if (!abort_reason_.empty()) return;
  abort_reason_ = "aborted";  // kept within the string
  try {
    if (!reason.empty()) abort_reason_ = reason;
  } catch (const std::bad_alloc&) {  // then it has no reason
  }
}

void CudaCommunicatorImpl::follow(std::function<std::optional<Error>()> lost) {
  const std::lock_guard lock(reason_mutex_);
  lost_ = std::move(lost);
}

// What a kernel that waits finds; whoever waits no more never asks, and has its result.
void CudaCommunicatorImpl::look() noexcept {
  try {
    // relaxed: a word by itself, as in abort(); why is read by those who ask, under reason_mutex_.
    if (lost_rank(false)) device::store_relaxed(&group_->control().abort, 1);
  } catch (const std::bad_alloc&) {  // for what is to be said: the next look finds it again
  }
}

std::optional<Error> CudaCommunicatorImpl::lost_rank(bool known_only) const {
  std::function<std::optional<Error>()> lost;
  {
    const std::lock_guard lock(reason_mutex_);
    if (ended_by_ || known_only) return ended_by_;
    lost = lost_;
  }
  std::optional<Error> why = lost ? lost() : std::nullopt;
  const std::lock_guard lock(reason_mutex_);
  if (why && !ended_by_) ended_by_.emplace(*why);
  return why;
}

std::optional<Error> CudaCommunicatorImpl::failure() const { return current_failure(); }

// What the ports' proxy has met comes first: it has aborted the kernels because of it.
std::optional<Error> CudaCommunicatorImpl::current_failure() const {
  if (const auto port = group_->port_failure()) {
    return Error(port->kind(), "group '" + options_.name + "', rank " + std::to_string(rank_) + ": " + port->what());
  }
  const device::HostControl& control = group_->control();
  std::string abort_reason;
  {
    const std::lock_guard lock(reason_mutex_);
    abort_reason = abort_reason_;
  }
  auto error = failure_of(control, rank_, options_.name, abort_reason, board_);
  // Of a rank that is lost the others end for the same reason, one by one, and one of them may be blamed. A later abort
  // here does not hide it. relaxed: failure_of() has acquired the record.
  constexpr auto kAborted = static_cast<std::uint64_t>(device::FailureCode::kAborted);
  if (error && device::load_relaxed(&control.code) == kAborted) {
    if (auto why = lost_rank(!abort_reason.empty())) return why;
  }
  if (!error || error->kind() != ErrorKind::kMismatch) return error;
  return Error(error->kind(), error->what() + registrations_.explain(static_cast<std::uint32_t>(control.mine)));
}

void CudaCommunicatorImpl::throw_if_failed() const {
  if (auto error = current_failure()) {
    log_.count_error();
    throw Error(*error);
  }
}

void CudaCommunicatorImpl::check(const Call& call) const {
  require_collectives();
  check_call(call, rank_, size_);
}

// Throws where there is no memory for anything but messages.
void CudaCommunicatorImpl::require_collectives() const {
  if (!options_.messages_only) return;
  throw_error(ErrorKind::kInvalidArgument, "group '" + options_.name + "', rank " + std::to_string(rank_) +
                                               ": made with DeviceOptions::messages_only, it can exchange() only");
}

CudaShape CudaCommunicatorImpl::shape_of(const Call& call) const noexcept {
  return {call.collective, call.dtype, size_, agreed_bytes(call, size_), group_->most_blocks(), group_->ll128()};
}

std::uint32_t number_of(const Choice& choice) noexcept {
  return static_cast<std::uint32_t>(choice.protocol) | static_cast<std::uint32_t>(choice.two_shot) << 2 |
         static_cast<std::uint32_t>(choice.blocks) << 3 | static_cast<std::uint32_t>(choice.piece_bytes) << 10;
}

// What the ranks must agree on, the choice of the algorithm included; remembered for messages of failures.
CallRecord CudaCommunicatorImpl::next_record(const Call& call, std::uint32_t choice, std::string_view plan) {
  CallRecord record = record_of(call);
  record.sequence = ++sequence_;
  if (!plan.empty()) name_algorithm(record, plan);
  record.hash = post(record, choice);
  return record;
}

std::uint32_t CudaCommunicatorImpl::post(CallRecord record, std::uint32_t choice) {
  record.algorithm = choice;  // with all its bits
  record.hash = fingerprint(record);
  board_.post(record);
  return record.hash;
}

void CudaCommunicatorImpl::log(const Call& call, const CallRecord& record, std::string_view algorithm,
                               const Launched& how) {
  log_.issued({record, -1, block_bytes(call, rank_), algorithm, call_timeout_}, how);
}

void CudaCommunicatorImpl::run(const Call& call, CudaStream stream, std::chrono::milliseconds timeout) {
  check(call);
  const DeviceGuard guard(group_->device());
  std::unique_lock lock(mutex_);
  throw_if_failed();
  const TablePlan* const plan = plan_of(call, lock);
  const auto on = static_cast<cudaStream_t>(stream);
  issue_whole(on, [&] { issue(call, plan, on, timeout); });
}

void CudaCommunicatorImpl::issue(const Call& call, const TablePlan* plan, cudaStream_t stream,
                                 std::chrono::milliseconds timeout) {
  call_timeout_ = timeout;
  if (plan != nullptr) {
    run_plan(call, *plan, stream);
  } else if (runs_as_messages(call)) {
    run_messages(call, stream);
  } else if (const std::optional<DirectPlace> place = direct_place(call)) {
    run_direct(call, *place, stream);
  } else if (const TunedStep* step = tuned(call); step != nullptr && step->plan != nullptr) {
    run_plan(call, *step->plan, stream);
  } else {
    run_collective(call, stream);
  }
}

void CudaCommunicatorImpl::run_collective(const Call& call, cudaStream_t stream) {
  const Choice choice = kernel_for(call);
  const CallRecord record = next_record(call, number_of(choice));
  log(call, record, name_of(choice), launch_collective(call, choice, record.hash, stream));
}

Launched CudaCommunicatorImpl::launch_collective(const Call& call, const Choice& choice, std::uint32_t fingerprint,
                                                 cudaStream_t stream) {
  const Reducer reducer = reducer_of(call.dtype, call.op);
  const auto enqueue = [&](Kernel kernel, auto&& args) {
    kernel.early = choice.protocol != Protocol::kBulk;
    return launch(kernel, choice.blocks, choice.threads, args, Lane::kCollectives, stream);
  };
  if (choice.two_shot) {
    return enqueue(kernel_of(choice.protocol, Pattern::kTwoShot, reducer),
                   make_two_shot(call, size_, choice, fingerprint));
  }
  if (choice.protocol == Protocol::kLL && size_ > 1) {
    if (std::optional<UniformArgs> args = make_uniform(call, size_, choice, fingerprint)) {
      return enqueue(uniform_kernel(reduces(call.collective), reducer, size_), *args);
    }
  }
  const Pattern pattern = reduces(call.collective) ? Pattern::kReduce : Pattern::kCopy;
  return enqueue(kernel_of(choice.protocol, pattern, reducer), make_exchange(call, rank_, size_, choice, fingerprint));
}

// Uneven calls whose sizes only the two ranks of a pair know. They are collectives all the same: in order with the
// others, and with this rank's own part copied here.
void CudaCommunicatorImpl::run_messages(const Call& call, cudaStream_t stream) {
  const CallRecord record = next_record(call, 0);
  const bool captured = collectives_.before(stream, group_);
  const bool has_own = call.collective == Collective::kAllToAll || rank_ == call.root;
  if (has_own) {
    const int in = call.collective == Collective::kGather ? 0 : rank_;
    const int out = call.collective == Collective::kScatter ? 0 : rank_;
    copy_own_part(call.output.data(out), call.input.data(in), call.output.size(out), stream);
  }
  const Launched how = launch_messages(messages_of(call, rank_, size_, record.hash), stream);
  collectives_.after(stream, captured);
  log(call, record, kMessagesName, how);
}

// For kernels that do not take it along.
void CudaCommunicatorImpl::copy_own_part(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream) {
  if (bytes == 0 || to == from) return;
  const bool captured = collectives_.before(stream, group_);
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "cudaMemcpyAsync");
  collectives_.after(stream, captured);
}

// Of several kernels, how the last one was launched: they run in order.
Launched CudaCommunicatorImpl::launch_messages(const std::vector<MessageRequest>& requests, cudaStream_t stream) {
  // As many blocks as lanes and channels: few where ranks share a GPU (GpuGroup::most_blocks).
  const int channels = group_->sharers() <= 2 ? kMessageChannels : 1;
  Launched last{Lane::kMessages, 0, 0, false, reinterpret_cast<std::uintptr_t>(stream)};
  CallTickets tickets(log_, call_timeout_);
  const auto enqueue = [&](bool many, auto args, bool is_last) {
    last = launch(message_kernel(many), args.lanes * args.channels, kMessageWorkers, args, Lane::kMessages, stream,
                  &tickets, is_last);
  };
  if (requests.empty()) return last;
  if (requests.size() <= kFewMessages) {
    enqueue(false, make_few_messages(requests, channels), true);
  } else {
    const std::vector<ManyMessages> kernels = make_many_messages(requests, channels);
    for (const ManyMessages& args : kernels) enqueue(true, args, &args == &kernels.back());
  }
  return last;
}

void CudaCommunicatorImpl::exchange(const std::vector<CudaMessage>& messages, CudaStream stream,
                                    std::chrono::milliseconds timeout) {
  std::vector<MessageRequest> requests;
  for (const CudaMessage& m : messages) {
    check_message(m, rank_, size_);
    requests.push_back({m.send, static_cast<std::byte*>(m.data), m.bytes, m.peer, m.tag});
  }
  const DeviceGuard guard(group_->device());
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  call_timeout_ = timeout;
  const auto on = static_cast<cudaStream_t>(stream);
  issue_whole(on, [&] {
    const Launched how = launch_messages(requests, on);
    for (const CudaMessage& m : messages) {
      log_.issued({record_of_message(m.send, m.bytes, DataType::kByte, m.tag), m.peer, m.bytes, kMessagesName, timeout},
                  how);
    }
  });
}

std::shared_ptr<CudaMemory> CudaCommunicatorImpl::allocate(const std::string& name, std::size_t bytes) {
  require_collectives();
  const DeviceGuard guard(group_->device());
  const RelaxedCapture relaxed;  // what follows waits for streams
  std::string problem;
  {
    const std::lock_guard lock(mutex_);
    problem = prepare_copies();
  }
  const auto forget = [this, life = life_](const CudaMemoryImpl& freed) {
    const std::lock_guard here(life->mutex);
    if (life->over) return;
    const std::lock_guard lock(mutex_);
    registrations_.remove(freed);
  };
  auto memory = std::make_shared<CudaMemoryImpl>(group_, name, bytes, problem, forget);
  const std::lock_guard lock(mutex_);
  // Not held: it goes when its callers let go of it.
  registrations_.add(std::shared_ptr<const CudaRegion>(std::shared_ptr<void>(), memory.get()), rank_, true);
  return released_by_owner(std::shared_ptr<CudaMemory>(std::move(memory)));  // its end waits for the ports' thread
}

// Here, where no kernel waits: CUDA may wait for kernels when it makes a stream. Why it cannot, which is said to all.
std::string CudaCommunicatorImpl::prepare_copies() {
  try {
    copy_streams_.prepare(rank_);
    return {};
  } catch (const std::exception& e) {
    return std::string("cannot make streams for copies: ") + e.what();
  }
}

bool CudaCommunicatorImpl::is_capturing(CudaStream stream) const {
  const DeviceGuard guard(group_->device());
  return cuda::is_capturing(static_cast<cudaStream_t>(stream));
}

void CudaCommunicatorImpl::synchronize(CudaStream stream) {
  const DeviceGuard guard(group_->device());
  wait_for_stream(static_cast<cudaStream_t>(stream));
  throw_if_failed();
}

// The handle of a default stream is that of the current device, and any thread may ask for what follows.
void CudaCommunicatorImpl::finish() noexcept {
  try {
    const DeviceGuard guard(group_->device());
    const std::lock_guard lock(mutex_);
    collectives_.wait();
    messages_.wait();
  } catch (const Error&) {
    // CUDA is gone, and nothing runs there.
  }
}

bool CudaCommunicatorImpl::idle() const noexcept {
  try {
    const DeviceGuard guard(group_->device());
    return collectives_.idle() && messages_.idle();
  } catch (const Error&) {
    return false;
  }
}

Metrics CudaCommunicatorImpl::metrics() const {
  const DeviceGuard guard(group_->device());
  return log_.metrics();
}

void CudaCommunicatorImpl::reset_metrics() noexcept { log_.reset_metrics(); }

std::string CudaCommunicatorImpl::flight_record() const {
  const DeviceGuard guard(group_->device());
  return log_.flight_record(options_.name);
}

std::string CudaCommunicatorImpl::explain(const Call& call) const {
  check(call);
  if (runs_as_messages(call)) return std::string(kMessagesName);
  std::unique_lock lock(mutex_);
  if (const TablePlan* plan = plan_of(call, lock)) return plan->name;
  if (const std::optional<DirectPlace> place = direct_place(call)) {
    return place->by_copy_engines ? "copy_engine" : "registered";
  }
  if (const TunedStep* step = tuned(call); step != nullptr && step->plan != nullptr) return step->plan->name;
  return to_string(kernel_for(call));
}

}  // namespace tutti::cuda
