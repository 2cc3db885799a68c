#include "communicator/nccl/nccl_communicator.h"

#include <algorithm>
#include <condition_variable>
#include <string_view>
#include <thread>
#include <utility>

#include "base/interruption.h"
#include "base/thread.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/nccl/joining.h"

namespace tutti {
namespace {

constexpr std::string_view kAlgorithm = "nccl";
// How long a call that is inside NCCL may take to come back by itself before NCCL is told to end it.
constexpr std::chrono::seconds kPatienceWithNccl(1);
constexpr std::chrono::seconds kMostOfTheEnd(10);
constexpr std::chrono::milliseconds kLookOutEvery(250);
// So many calls on their way are looked at by the caller, where nobody else looks.
constexpr std::size_t kManyPending = 1024;

// That NCCL has ended, on another thread.
struct Done {
  std::mutex mutex;  // guards the member below; a leaf
  std::condition_variable changed;
  bool over = false;
};

// Connects the two ranks of a pair, whose calls wait for that, by a byte. Nothing waits for it to arrive: kernels under
// way may come first.
std::function<ncclResult_t(ncclComm_t)> connecting(const NcclLibrary& nccl, std::shared_ptr<std::byte> word, int rank,
                                                   DeviceStream stream) {
  return [&nccl, word = std::move(word), rank, stream](ncclComm_t comm) {
    auto* const on = static_cast<cudaStream_t>(stream);
    return rank == 0 ? nccl.ncclSend(word.get(), 1, ncclUint8, 1, comm, on)
                     : nccl.ncclRecv(word.get(), 1, ncclUint8, 0, comm, on);
  };
}

// At the end nobody is left to hear of an error.
template <class Call>
void at_the_end(StreamWork& work, const Call& call) noexcept {
  try {
    work.run([&] { static_cast<void>(call()); });
  } catch (const std::exception&) {
  }
}

}  // namespace

void NcclCommunicator::Life::abort() noexcept {
  if (ending.exchange(true)) return;
  const std::unique_lock lock(order, kPatienceWithNccl);  // without it, too: that is what ncclCommAbort is for
  if (ncclComm_t const mine = comm.exchange(nullptr, std::memory_order_acq_rel)) {
    at_the_end(*work, [&] { return nccl.ncclCommAbort(mine); });
  }
}

void NcclCommunicator::Life::destroy() noexcept {
  const std::lock_guard lock(order);
  if (ncclComm_t const mine = comm.exchange(nullptr, std::memory_order_acq_rel)) {
    at_the_end(*work, [&] { return nccl.ncclCommDestroy(mine); });
  }
}

NcclCommunicator::NcclCommunicator(const BootstrapPtr& bootstrap, const DeviceOptions& options,
                                   std::shared_ptr<StreamWork> work, const NcclLibrary& nccl, std::string why)
    : rank_(bootstrap->rank()),
      size_(bootstrap->size()),
      options_(options),
      work_(std::move(work)),
      nccl_(nccl),
      why_(std::move(why)),
      life_(std::make_shared<Life>(nccl, work_)),
      bootstrap_(bootstrap),
      timeout_(options.timeout),
      recorder_(options_.settings().flight_recorder_entries, FlightRecorder::Of::kCuda) {
  check_group_timeout(options_.name, options_.timeout);
  word_ = work_->memory(1, work_->own_stream());
  NcclJoin join{options_.name, why_, options_.timeout, {}};
  if (options_.messages_only) {
    join.first = connecting(nccl_, word_, rank_, work_->own_stream());
  } else {
    work_->wait(work_->own_stream());  // other streams use the word
  }
  life_->comm.store(join_nccl(*bootstrap, join, nccl_, work_), std::memory_order_release);
  bootstrap_->formed();
}

NcclCommunicator::~NcclCommunicator() {
  const auto under_way = [&] {
    const std::lock_guard lock(state_);
    return !failed_ && (inside_ || !pending_.empty());
  };
  for (look(); under_way(); look()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread lookout;
  {
    const std::lock_guard lock(state_);
    leaving_ = true;
    lookout = std::move(lookout_);
    changed_.notify_all();
  }
  if (lookout.joinable()) lookout.join();
  // Of what has failed the end is on its way. NCCL does not come back before all graphs of its calls are gone.
  if (life_->ending.load(std::memory_order_acquire)) return;
  const auto done = std::make_shared<Done>();
  try {
    start_thread("NCCL's end", [done, life = life_] {
      life->destroy();
      const std::lock_guard lock(done->mutex);
      done->over = true;
      done->changed.notify_all();
    }).detach();
  } catch (const Error&) {
    return;  // it stays, with the process
  }
  if (captured_.load(std::memory_order_relaxed)) return;
  std::unique_lock lock(done->mutex);
  done->changed.wait_for(lock, kMostOfTheEnd, [&] { return done->over; });
}

std::string NcclCommunicator::named() const { return "group '" + options_.name + "' on rank " + std::to_string(rank_); }

void NcclCommunicator::check(const Call& call) const {
  check_call(call, rank_, size_);
  check_nccl_reduction(call);
}

void NcclCommunicator::prepare(const UserAlgorithmPtr& /*algorithm*/) {
  throw_error(ErrorKind::kUnsupported,
              named() + ": " + why_ + ", so its calls on GPUs are NCCL's, which runs no algorithms of a program's");
}

std::vector<std::shared_ptr<DeviceRegion>> NcclCommunicator::register_memory(const std::vector<DeviceRange>&) {
  throw_error(ErrorKind::kUnsupported, "memory is not registered: group '" + options_.name + "': " + why_);
}

void NcclCommunicator::run(const Call& call, DeviceStream stream, std::chrono::milliseconds timeout) {
  check(call);
  CallRecord record = record_of(call);
  record.sequence = sequence_.fetch_add(1, std::memory_order_relaxed) + 1;
  record.hash = fingerprint(record);
  enqueue({{record, -1, block_bytes(call, rank_)}}, stream, timeout, [&](ncclComm_t comm) {
    const std::size_t bytes = nccl_scratch_bytes(call, size_);
    const auto scratch = call.collective == Collective::kBarrier ? word_
                         : bytes > 0                             ? work_->memory(bytes, stream)
                                                                 : nullptr;
    const NcclCall made = make_nccl_call(call, rank_, size_, scratch.get());
    for (const NcclCopy& copy : made.before) work_->copy(copy.to, copy.from, copy.bytes, stream);
    issue(comm, made, call, stream);
    for (const NcclCopy& copy : made.after) work_->copy(copy.to, copy.from, copy.bytes, stream);
  });
}

void NcclCommunicator::exchange(const std::vector<DeviceMessage>& messages, DeviceStream stream,
                                std::chrono::milliseconds timeout) {
  std::vector<Entry> entries;
  for (const DeviceMessage& m : messages) {
    check_message(m, rank_, size_);
    entries.push_back({record_of_message(m.send, m.bytes, DataType::kByte, m.tag), m.peer, m.bytes});
  }
  if (entries.empty()) return;
  enqueue(entries, stream, timeout, [&](ncclComm_t comm) {
    grouped([&] {
      for (const DeviceMessage& m : messages) {
        if (m.bytes == 0) continue;  // for both ranks
        auto* const data = static_cast<std::byte*>(m.data);
        const NcclStep one{m.send ? NcclStep::Kind::kSend : NcclStep::Kind::kRecv, m.send ? data : nullptr,
                           m.send ? nullptr : data, m.bytes, m.peer};
        step(comm, {}, ncclSum, one, stream);
      }
    });
  });
}

void NcclCommunicator::begin(Pending& call, const std::vector<Entry>& entries, DeviceStream stream, bool captured) {
  const std::lock_guard lock(state_);
  if (call.timeout.count() <= 0) call.timeout = timeout_;
  for (const Entry& entry : entries) {
    metrics_.record(entry.record.call, entry.bytes, kAlgorithm, -1, 0);
    call.ids.push_back(recorder_.add(entry.record, entry.peer, FlightRecorder::State::kScheduled, call.timeout.count(),
                                     {reinterpret_cast<std::uintptr_t>(stream), captured}));
  }
  if (pending_.size() > kManyPending) static_cast<void>(overdue());
  inside_ = call;
  inside_->began = Clock::now();
}

void NcclCommunicator::enqueue(const std::vector<Entry>& entries, DeviceStream stream,
                               std::chrono::milliseconds timeout, const std::function<void(ncclComm_t)>& issue) {
  const std::lock_guard order(life_->order);
  throw_if_failed();
  const bool captured = work_->is_capturing(stream);
  Pending call;
  call.record = entries.front().record;
  call.timeout = timeout;
  if (captured) {
    captured_.store(true, std::memory_order_relaxed);
  } else {
    call.begin = work_->mark(stream);
  }
  begin(call, entries, stream, captured);
  const auto leave = [&](bool enqueued) {
    const std::lock_guard lock(state_);
    inside_.reset();
    if (enqueued && !captured) return pending_.push_back(std::move(call));
    if (enqueued) return;
    metrics_.count_error();
    for (const std::uint64_t id : call.ids) recorder_.update(id, FlightRecorder::State::kFailed);
  };
  try {
    work_->run([&] { issue(life_->comm.load(std::memory_order_acquire)); });
    if (!captured) call.end = work_->mark(stream);
  } catch (const Error& error) {
    leave(false);
    throw_if_failed();  // which has ended it, and is the reason
    // What NCCL refuses it has not begun.
    if (error.kind() != ErrorKind::kInvalidArgument) fail(error.kind(), error.what());
    throw;
  } catch (...) {
    leave(false);
    throw;
  }
  leave(true);
}

void NcclCommunicator::require(ncclResult_t result, const char* function) const {
  // acquire: pairs with the release in Life::abort(). Then the communicator may be gone, whatever NCCL says.
  if (life_->ending.load(std::memory_order_acquire)) throw_error(ErrorKind::kAborted, named() + ": was ended");
  if (result == ncclSuccess) return;
  throw Error(nccl_error(nccl_, result, named() + ": " + function));
}

void NcclCommunicator::grouped(const std::function<void()>& calls) {
  require(nccl_.ncclGroupStart(), "ncclGroupStart");
  try {
    calls();
  } catch (...) {
    static_cast<void>(nccl_.ncclGroupEnd());  // or this thread's later calls would be of it
    throw;
  }
  require(nccl_.ncclGroupEnd(), "ncclGroupEnd");
}

void NcclCommunicator::issue(ncclComm_t comm, const NcclCall& made, const Call& call, DeviceStream stream) {
  ncclRedOp_t op = made.op;
  if (made.scaled) {
    std::array<std::byte, 8> factor = nccl_factor(call);
    const bool on_device = call.device_factor != nullptr;
    require(nccl_.ncclRedOpCreatePreMulSum(&op, on_device ? const_cast<void*>(call.device_factor) : factor.data(),
                                           made.type, on_device ? ncclScalarDevice : ncclScalarHostImmediate, comm),
            "ncclRedOpCreatePreMulSum");
  }
  const auto all = [&] {
    for (const NcclStep& each : made.steps) step(comm, made, op, each, stream);
  };
  if (made.steps.size() == 1) {
    all();
  } else if (!made.steps.empty()) {
    grouped(all);
  }
  if (made.scaled) require(nccl_.ncclRedOpDestroy(op, comm), "ncclRedOpDestroy");
}

void NcclCommunicator::step(ncclComm_t comm, const NcclCall& made, ncclRedOp_t op, const NcclStep& step,
                            DeviceStream stream) {
  auto* const on = static_cast<cudaStream_t>(stream);
  using Kind = NcclStep::Kind;
  switch (step.kind) {
    case Kind::kAllReduce:
      return require(nccl_.ncclAllReduce(step.send, step.recv, step.count, made.type, op, comm, on), "ncclAllReduce");
    case Kind::kReduce:
      return require(nccl_.ncclReduce(step.send, step.recv, step.count, made.type, op, step.peer, comm, on),
                     "ncclReduce");
    case Kind::kBroadcast:
      return require(nccl_.ncclBroadcast(step.send, step.recv, step.count, made.type, step.peer, comm, on),
                     "ncclBroadcast");
    case Kind::kAllGather:
      return require(nccl_.ncclAllGather(step.send, step.recv, step.count, made.type, comm, on), "ncclAllGather");
    case Kind::kReduceScatter:
      return require(nccl_.ncclReduceScatter(step.send, step.recv, step.count, made.type, op, comm, on),
                     "ncclReduceScatter");
    case Kind::kSend:
      return require(nccl_.ncclSend(step.send, step.count, made.type, step.peer, comm, on), "ncclSend");
    case Kind::kRecv:
      return require(nccl_.ncclRecv(step.recv, step.count, made.type, step.peer, comm, on), "ncclRecv");
  }
}

std::string NcclCommunicator::late(const Pending& call, const char* what) const {
  return named() + ": " + describe(call.record) + " over NCCL " + what + " within " +
         std::to_string(call.timeout.count()) +
         " ms: a rank has not made it, or cannot be reached. tutti.flight_record() has the last calls of each rank";
}

std::optional<std::string> NcclCommunicator::overdue() const {
  const auto now = Clock::now();
  while (!pending_.empty() && work_->reached(pending_.front().end)) {
    for (const std::uint64_t id : pending_.front().ids) recorder_.update(id, FlightRecorder::State::kCompleted);
    pending_.pop_front();
    ++ended_;
  }
  if (!pending_.empty()) {
    Pending& first = pending_.front();
    if (!first.began && work_->reached(first.begin)) {
      first.began = now;
      for (const std::uint64_t id : first.ids) recorder_.update(id, FlightRecorder::State::kStarted);
    }
    if (first.began && now - *first.began >= first.timeout) return late(first, "has not ended");
  }
  if (inside_ && now - *inside_->began >= inside_->timeout) return late(*inside_, "was not begun");
  return std::nullopt;
}

void NcclCommunicator::look() noexcept {
  try {
    std::optional<std::string> late;
    std::function<std::optional<Error>()> lost;
    {
      const std::lock_guard lock(state_);
      if (failed_) return;
      late = overdue();
      if (inside_ || !pending_.empty() || captured_.load(std::memory_order_relaxed)) lost = lost_;
    }
    if (const auto why = lost ? lost() : std::nullopt) return fail(why->kind(), why->what());
    if (late) return fail(ErrorKind::kTimeout, *late);
    std::thread before;
    if (const std::lock_guard lock(state_); waits_for_long() && !looking_out_ && !leaving_) {
      before = std::exchange(lookout_, {});
      lookout_ = start_thread("looking out for lost ranks", [this] { look_out(); });
      looking_out_ = true;
    }
    if (before.joinable()) before.join();  // it is over
    const std::unique_lock order(life_->order, std::try_to_lock);
    ncclComm_t const comm = order ? life_->comm.load(std::memory_order_acquire) : nullptr;
    ncclResult_t result = ncclSuccess;
    if (comm == nullptr || nccl_.ncclCommGetAsyncError(comm, &result) != ncclSuccess) return;
    if (result != ncclSuccess && result != ncclInProgress) {
      const Error error = nccl_error(nccl_, result, named() + ": NCCL");
      fail(error.kind(), error.what());
    }
  } catch (const std::exception&) {  // for want of memory: the next look finds it again
  }
}

bool NcclCommunicator::waits_for_long() const {
  const auto since = inside_ ? inside_->began : !pending_.empty() ? pending_.front().began : std::nullopt;
  return since && Clock::now() - *since >= kLookOutEvery;
}

void NcclCommunicator::look_out() {
  std::optional<Error> lost;
  std::uint64_t waits = 0;  // the call that waited when a rank was found lost
  for (;;) {
    {
      std::unique_lock lock(state_);
      changed_.wait_for(lock, kLookOutEvery, [&] { return leaving_; });
      if (!failed_) static_cast<void>(overdue());
      if (leaving_ || failed_ || !waits_for_long()) {
        looking_out_ = false;
        return;
      }
      const Pending& call = inside_ ? *inside_ : pending_.front();
      // A rank that has left in good order has done its part: only what goes on waiting is at an end.
      if (lost && waits == call.ids.front()) {
        const std::string text = named() + ": " + describe(call.record) + " over NCCL: " + lost->what();
        lock.unlock();
        fail(lost->kind(), text);
        continue;
      }
      waits = call.ids.front();
    }
    try {
      bootstrap_->watch();
    } catch (const Error& error) {
      // This rank's own end is told in other ways.
      if (error.kind() != ErrorKind::kAborted) lost.emplace(error);
    } catch (const std::exception&) {  // for want of memory: the next look finds it again
    }
  }
}

void NcclCommunicator::fail(ErrorKind kind, const std::string& text) noexcept {
  {
    const std::lock_guard lock(state_);
    if (failed_) return;
    failed_ = true;
    kind_ = kind;
    try {
      text_ = text;
      metrics_.count_error();
      for (const Pending& call : pending_) {
        for (const std::uint64_t id : call.ids) recorder_.update(id, FlightRecorder::State::kFailed);
      }
    } catch (const std::bad_alloc&) {
    }
  }
  try {
    start_thread("the end of NCCL's calls", [life = life_] { life->abort(); }).detach();
  } catch (const std::exception&) {
    life_->abort();
  }
}

void NcclCommunicator::throw_if_failed() const {
  if (const auto error = failure()) throw Error(*error);
}

std::optional<Error> NcclCommunicator::failure() const {
  const std::lock_guard lock(state_);
  if (!failed_) return std::nullopt;
  return Error(kind_, text_.empty() ? "the group has failed" : text_);
}

void NcclCommunicator::abort(const std::string& reason) noexcept {
  try {
    std::string text = named() + ": aborted";
    if (!reason.empty()) text.append(": ").append(reason);
    fail(ErrorKind::kAborted, text);
  } catch (const std::bad_alloc&) {
    fail(ErrorKind::kAborted, {});
  }
}

void NcclCommunicator::follow(std::function<std::optional<Error>()> lost) {
  const std::lock_guard lock(state_);
  lost_ = std::move(lost);
}

// Looks itself, too: the process's watch may have been turned off.
void NcclCommunicator::synchronize(DeviceStream stream) {
  const StreamWork::Mark mark = work_->mark(stream);
  for (const auto start = Clock::now(); !work_->reached(mark);) {
    if (!go_on_waiting()) break;
    if (Clock::now() - start < std::chrono::milliseconds(1)) continue;
    look();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  look();
  throw_if_failed();
  work_->wait(stream);
}

std::chrono::milliseconds NcclCommunicator::timeout() const noexcept {
  const std::lock_guard lock(state_);
  return timeout_;
}

void NcclCommunicator::set_timeout(std::chrono::milliseconds timeout) {
  check_group_timeout(options_.name, timeout);
  const std::lock_guard lock(state_);
  timeout_ = timeout;
}

std::string NcclCommunicator::explain(const Call& call) const {
  check(call);
  return std::string(kAlgorithm);
}

std::string NcclCommunicator::candidates(const Call& call) const {
  return explain(call) + " " + nccl_.version + ": " + why_;
}

Metrics NcclCommunicator::metrics() const {
  const std::lock_guard lock(state_);
  Metrics metrics = metrics_.snapshot();
  for (MetricsRow& row : metrics.rows) row.device = "cuda";
  static_cast<void>(overdue());
  metrics.device_calls = ended_;
  return metrics;
}

void NcclCommunicator::reset_metrics() noexcept {
  const std::lock_guard lock(state_);
  metrics_.reset();
}

std::string NcclCommunicator::flight_record() const {
  {
    const std::lock_guard lock(state_);
    if (!failed_) static_cast<void>(overdue());
  }
  return recorder_.dump(options_.name, rank_, size_);
}

}  // namespace tutti
