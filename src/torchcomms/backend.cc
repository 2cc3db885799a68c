#include "torchcomms/backend.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <comms/torchcomms/TorchCommFactory.hpp>
#include <comms/torchcomms/utils/Utils.hpp>
#include <numeric>
#include <random>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "base/names.h"
#include "base/registry.h"
#include "interpreter/without_python.h"
#include "torchcomms/watch.h"
#include "torchcomms/window.h"
#include "torchcomms/work.h"

namespace tutti::torchcomms {
namespace {

constexpr std::chrono::milliseconds kForEver = std::chrono::hours(24 * 365);
// How long a failure that nobody waits for goes unnoticed.
constexpr std::chrono::milliseconds kLookForFailures(100);

// Tells this process from all others: reconfigure() finds its rank by it.
std::string new_handle() {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::random_device random;
  std::string handle = "tutti:";
  for (int i = 0; i < 32; ++i) handle += kDigits[random() % kDigits.size()];
  return handle;
}

}  // namespace

TorchCommTutti::TorchCommTutti() : handle_(new_handle()), link_(std::make_shared<Link>(*this)) {}

TorchCommTutti::~TorchCommTutti() {
  if (watched_ != 0) Watch::of_process().remove(watched_);
  link_->end();
  for (void* const handle : persistent_) delete static_cast<Persistent*>(handle);
  if (forked_child()) return;  // where threads of the parent's may have had the locks; groups know what to leave
  if (life_ == Life::kReady && !isAborted()) {
    TORCH_WARN("tutti: communicator '", name_, "' goes without finalize(): call it on every rank");
  }
  end_windows();
  without_python([this] { group_.reset(); });  // joins the group's threads
}

std::string_view TorchCommTutti::getBackendVersion() const { return TUTTI_VERSION; }

void TorchCommTutti::refuse(const std::string& operation, const std::string& reason) const {
  C10_THROW_ERROR(Error, "tutti: " + operation + " on communicator '" + name_ + "': " + reason);
}

void TorchCommTutti::refuse_if(const std::string& operation, const std::string& reason) const {
  if (!reason.empty()) refuse(operation, reason);
}

void TorchCommTutti::refuse_in_child(const char* operation) const {
  if (forked_child()) refuse(operation, "it belongs to the parent: Tutti is disabled in a forked child");
}

int TorchCommTutti::checked_rank(int rank, const char* operation, const char* which) const {
  if (rank >= 0 && rank < size_) return rank;
  ready(operation);
  refuse(operation, std::string(which) + " " + std::to_string(rank) + " is no rank of it: they are 0 to " +
                        std::to_string(size_ - 1));
}

c10d::Backend& TorchCommTutti::ready(const char* operation) const {
  // What a failure was, the group says itself.
  if (life_ == Life::kReady && !aborted_.load(std::memory_order_acquire)) [[likely]]
    return *group_;
  std::string reason = "it is not initialized: make it with torchcomms.new_comm";
  if (life_ == Life::kAwaitsReconfigure)
    reason = "it is not initialized: it was made with enable_reconfigure, call reconfigure() first";
  if (life_ == Life::kFinalized) reason = "it is finalized";
  if (life_ == Life::kReady) reason = "it was aborted: call reconfigure(), or make another one";
  C10_THROW_ERROR(DistBackendError, "tutti: " + std::string(operation) + " on communicator '" + name_ + "': " + reason);
}

Group TorchCommTutti::current_group() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_;
}

std::string TorchCommTutti::refusal(const char* operation, const std::string& reason) const {
  return reason.empty() ? reason : std::string(operation) + " on communicator '" + name_ + "': " + reason;
}

void TorchCommTutti::make(int rank, int size, const std::string& key, Milliseconds timeout, bool anew, Hints hints,
                          const std::string& refused) {
  if (generation_ > 0) refuse_in_child("reconfigure");  // what is new to the child, Python's part refuses
  choose_device(rank);
  const StorePtr parents = std::exchange(parents_store_, nullptr);
  link_->look_for_failure();  // of before: it is told still
  meets(true);
  MadeGroup made;
  try {
    made = make_group({parents != nullptr ? parents : given_, rank, size, key, timeout, hints, anew,
                       std::exchange(split_from_, nullptr), std::exchange(among_, {}), refused});
  } catch (...) {
    meets(false);
    throw;
  }
  Group previous;
  WindowGroups of_previous;
  // Together: an abort() comes to the group before, or to this one and stays; so do hooks.
  without_python([&] {
    const std::lock_guard<std::recursive_mutex> hooks(link_->hooks());
    const std::lock_guard<std::mutex> lock(mutex_);
    previous = std::exchange(group_, std::move(made.group));
    of_previous = take_windows();
    meets_ = false;
    ++generation_;
    aborted_.store(false, std::memory_order_release);
    hooks_have_run_ = false;
  });
  store_ = std::move(made.store);
  take_hints(std::move(hints));
  end_windows(of_previous);
  without_python([&] { previous.reset(); });
  rank_ = rank;
  size_ = size;
  offer_allocator();
  key_ = key;
  if (watched_ == 0) {
    // Its first use takes Python's lock behind the lock of a static variable.
    without_python([this] {
      watched_ = Watch::of_process().add(Watch::Clock::now() + kLookForFailures, kLookForFailures,
                                         [link = link_] { return !link->look_for_failure(); });
    });
  }
  life_ = Life::kReady;
}

void TorchCommTutti::choose_device(int rank) {
  if (!device_.is_cuda()) return;
  const c10::impl::VirtualGuardImpl cuda(device_.type());
  const int gpus = cuda.deviceCount();
  if (gpus == 0) refuse("init", "there is no GPU here: pass torch.device(\"cpu\")");
  if (!device_.has_index()) device_.set_index(static_cast<c10::DeviceIndex>(rank % gpus));
  // As TorchComms' own backends leave it: programs go by the streams of the current device, and capture those.
  cuda.setDevice(device_);
  if (!nothing_.defined()) nothing_ = at::zeros({1}, at::TensorOptions(at::kByte).device(device_));
}

// What get_mem_allocator() gives, one for all communicators of the process: memory that the ranks of a host map, the
// GPUs' once there has been a communicator of a GPU. TorchComms keeps the first function that it is given.
void TorchCommTutti::offer_allocator() const {
  static std::atomic<bool> for_gpus{false};  // relaxed: says nothing of other memory
  if (device_.is_cuda()) for_gpus.store(true, std::memory_order_relaxed);
  comms::TorchCommFactory::get().register_allocator_factory(kBackendName, [of_cpu = group_->getMemAllocator()] {
    return for_gpus.load(std::memory_order_relaxed) ? cuda_allocator() : of_cpu;
  });
}

void TorchCommTutti::init(at::Device device, const std::string& name, const comms::CommOptions& options) {
  if (life_ != Life::kNew) refuse("init", "it is initialized already");
  if (!device.is_cpu() && !device.is_cuda()) {
    refuse("init", "tutti serves CPU and CUDA devices, not " + device.str());
  }
  device_ = device;
  name_ = name;
  options_ = options;
  options_.store = nullptr;  // held here alone
  constexpr const char* kOperation = "init";
  const std::string wrong = wrong_hint(options.hints);
  given_ = options.store;
  if (options.enable_reconfigure) {
    refuse_if(kOperation, wrong);  // nobody waits for it yet
    take_hints(options.hints);
    key_ = name;
    life_ = Life::kAwaitsReconfigure;
    return;
  }
  if (rank_ < 0) std::tie(rank_, size_) = comms::query_ranksize();
  make(rank_, size_, key_.empty() ? name : key_, options.timeout, /*anew=*/false, options.hints,
       refusal(kOperation, wrong));
}

void TorchCommTutti::finalize() {
  if (life_ == Life::kNew || life_ == Life::kAwaitsReconfigure) refuse("finalize", "it is not initialized");
  if (life_ == Life::kFinalized) refuse("finalize", "it is already finalized");
  if (forked_child()) return;  // the group is the parent's, and so are the locks
  life_ = Life::kFinalized;
  registered_.clear();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    finalized_ = failure() == c10d::ErrorType::SUCCESS;
  }
  if (!finalized_) link_->look_for_failure();  // of before: it is told still
  Watch::of_process().remove(std::exchange(watched_, 0));
  std::exception_ptr interrupted;  // a signal's handler has raised
  if (finalized_ && window_group_ != nullptr) {
    without_python([&] {
      try {
        interrupted = window_group_->leave_inboxes();
      } catch (...) {  // as much, and the rest is to follow
        interrupted = std::current_exception();
      }
    });
  }
  end_windows();
  const Group group = current_group();
  if (!aborted_.load(std::memory_order_acquire)) group->shutdown();
  given_.reset();
  store_.reset();
  if (interrupted != nullptr) std::rethrow_exception(interrupted);
}

void TorchCommTutti::setTimeout(Milliseconds timeout) {
  if (timeout.count() <= 0) refuse("set_timeout", "a time limit must be positive");
  ready("set_timeout").setTimeout(timeout);
  options_.timeout = timeout;
  if (forked_child()) return;  // a thread of the parent's may have had a group's lock
  for (const auto& of_gpus : gpu_window_groups_) {
    if (const Group group = of_gpus->group(); group != nullptr) group->setTimeout(timeout);
  }
}

void TorchCommTutti::setHints(Hints hints) {
  constexpr const char* kOperation = "set_hints";
  refuse_if(kOperation, wrong_hint(hints));
  if (life_ == Life::kReady) {
    refuse_if(kOperation, unchangeable_hint(options_.hints, hints));
    keep_settled(options_.hints, hints);
  }
  take_hints(std::move(hints));
}

void TorchCommTutti::take_hints(Hints hints) {
  options_.hints = std::move(hints);
  failure_aborts_.store(failure_aborts(options_.hints), std::memory_order_relaxed);
}

std::shared_ptr<comms::TorchCommBackend> TorchCommTutti::split(const std::vector<int>& ranks, const std::string& name,
                                                               const comms::CommOptions& options) {
  constexpr const char* kOperation = "split";
  ready(kOperation);
  refuse_in_child(kOperation);
  for (const int rank : ranks) checked_rank(rank, kOperation, "the list's");
  if (std::set<int>(ranks.begin(), ranks.end()).size() != ranks.size()) {
    refuse(kOperation, "Duplicate ranks found in ranks list " + joined(ranks, ","));
  }
  if (ranks.empty()) return nullptr;  // this rank is in no part
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) {
    refuse(kOperation, "Current rank " + std::to_string(rank_) + " is not included in the provided ranks list " +
                           joined(ranks, ",") + ": a rank that is in no part passes an empty list");
  }
  auto part = std::make_shared<TorchCommTutti>();
  part->rank_ = static_cast<int>(own - ranks.begin());
  part->size_ = static_cast<int>(ranks.size());
  // Only its members count it: parts of one split, and ranks without a part, need not keep step.
  part->key_ = key_ + "/split:" + joined(ranks, ",") + ":" + name;
  comms::CommOptions child = options;
  if (child.store == nullptr) {
    child.store = given_;
    part->parents_store_ = store_;
    part->split_from_ = group_;
    part->among_ = ranks;
  }
  child.enable_reconfigure = false;
  const int lowest = *std::min_element(ranks.begin(), ranks.end());
  part->init(device_, name + "_" + std::to_string(lowest), child);
  return part;
}

WorkPtr TorchCommTutti::reconfigure(const comms::ReconfigureOptions& options) {
  constexpr const char* kOperation = "reconfigure";
  if (life_ == Life::kNew) refuse(kOperation, "it is not initialized: make it with torchcomms.new_comm");
  if (life_ == Life::kFinalized) refuse(kOperation, "it is finalized");
  // Handles in no order are ordered by their text, on all ranks alike.
  std::vector<std::string> handles = std::visit(
      [](const auto& given) { return std::vector<std::string>(given.begin(), given.end()); }, options.handles);
  if (options.handles.index() == 0) std::sort(handles.begin(), handles.end());
  if (std::set<std::string>(handles.begin(), handles.end()).size() != handles.size()) {
    refuse(kOperation, "a handle is in the list twice");
  }
  const auto own = std::find(handles.begin(), handles.end(), handle_);
  if (own == handles.end()) {
    refuse(kOperation,
           "this process's handle " + handle_ + " is not among those given: pass what get_init_handle() returns");
  }
  Hints hints = options_.hints;
  for (const auto& [hint, value] : options.hints) hints[hint] = value;
  const std::string wrong = wrong_hint(hints);
  if (!uuids_.insert(options.uuid).second) {
    refuse(kOperation, "uuid " + std::to_string(options.uuid) + " has been used: each reconfigure() takes a new one");
  }
  make(static_cast<int>(own - handles.begin()), static_cast<int>(handles.size()),
       name_ + "/reconfigured:" + std::to_string(options.uuid), options.timeout.value_or(options_.timeout),
       /*anew=*/true, wrong.empty() ? std::move(hints) : options_.hints, refusal(kOperation, wrong));
  current_group()->setTimeout(options_.timeout);  // of its calls: what was given is of the meeting
  return c10::make_intrusive<comms::TorchWorkCompleted>();
}

void TorchCommTutti::tensor_register(const at::Tensor& tensor) {
  ready("tensor_register");
  if (!tensor.defined() || !tensor.has_storage()) refuse("tensor_register", "the tensor has no memory of its own");
  registered_.push_back(tensor);
}

void TorchCommTutti::tensor_deregister(const at::Tensor& tensor) {
  const auto found = std::find_if(registered_.begin(), registered_.end(),
                                  [&](const at::Tensor& held) { return held.is_same(tensor); });
  if (found == registered_.end()) refuse("tensor_deregister", "the tensor is not registered");
  registered_.erase(found);
}

std::shared_ptr<comms::TorchCommWindow> TorchCommTutti::new_window(const std::optional<at::Tensor>& tensor) {
  ready("new_window");
  auto window = std::make_shared<Window>(link_);
  if (tensor.has_value()) window->tensor_register(*tensor, /*owning=*/true);
  return window;
}

std::shared_ptr<WindowGroup> TorchCommTutti::make_window_group(const std::string& name, Milliseconds timeout) {
  std::vector<int> all(static_cast<std::size_t>(size_));
  std::iota(all.begin(), all.end(), 0);
  const Group made =
      make_group({store_, rank_, size_, key_ + name, options_.timeout, {}, false, group_, std::move(all)}).group;
  made->setTimeout(timeout);
  return std::make_shared<WindowGroup>(made, name_);
}

std::pair<std::shared_ptr<WindowGroup>, std::int64_t> TorchCommTutti::next_window() {
  if (window_group_ == nullptr) {
    // A receive of it ends when a peer has something to say.
    auto made = make_window_group("/windows", kForEver);
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      window_group_ = made;
      windows_ = 0;
    }
    made->abort_if(aborted_);
  }
  return {window_group_, windows_++};
}

std::shared_ptr<WindowGroup> TorchCommTutti::gpu_window_group() {
  if (!idle_.empty()) {
    auto group = std::move(idle_.back());
    idle_.pop_back();
    return group;
  }
  auto made = make_window_group("/GPU windows/" + std::to_string(gpu_window_groups_made_++), options_.timeout);
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    gpu_window_groups_.push_back(made);
  }
  made->abort_if(aborted_);
  return made;
}

void TorchCommTutti::give_back(std::shared_ptr<WindowGroup> of_gpus, bool again) {
  if (again) return idle_.push_back(std::move(of_gpus));
  link_->look_for_failure();  // nobody finds one of this group any more
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::erase(gpu_window_groups_, of_gpus);
  }
  of_gpus->end();
}

// mutex_ is held.
TorchCommTutti::WindowGroups TorchCommTutti::take_windows() {
  idle_.clear();
  gpu_window_groups_made_ = 0;  // the next ones are of another key
  WindowGroups all = std::exchange(gpu_window_groups_, {});
  if (window_group_ != nullptr) all.push_back(std::exchange(window_group_, nullptr));
  return all;
}

void TorchCommTutti::end_windows(const WindowGroups& all) {
  without_python([&all] {
    for (const auto& windows : all) windows->end();
  });
}

void TorchCommTutti::end_windows() {
  WindowGroups all;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    all = take_windows();
  }
  end_windows(all);
}

void TorchCommTutti::meets(bool now) {
  const std::lock_guard<std::mutex> lock(mutex_);
  meets_ = now;
}

WorkPtr TorchCommTutti::run(const char* operation, const at::Tensor* tensor, bool async, const Given& options,
                            const std::function<CallPtr(c10d::Backend&)>& issue, Milliseconds limit) {
  c10d::Backend& group = ready(operation);
  if (std::min(options.timeout, limit).count() < 0) refuse(operation, "a time limit must not be negative");
  if (!options.hints.empty()) refuse_if(operation, wrong_hint_of_call(options.hints));
  std::optional<c10::Device> gpu;
  if (tensor != nullptr && tensor->defined() && tensor->is_cuda()) gpu = tensor->device();
  CallPtr call;
  try {
    call = issue(group);
    // A work that has failed is complete, too: its wait() raises. On a GPU a limit would hold up the host (work.h).
    if (!async) call->wait(limit.count() > 0 && !gpu.has_value() ? limit : kNoTimeout);
  } catch (const c10::ValueError& wrong) {  // of arguments: RuntimeError, as TorchComms' other backends raise
    refuse(operation, wrong.what_without_backtrace());
  } catch (const c10::TypeError& wrong) {
    refuse(operation, wrong.what_without_backtrace());
  } catch (const c10::DistBackendError& late) {
    link_->look_for_failure();
    if (call == nullptr || gpu.has_value() || !is_of_wait(*call, limit)) throw;
    C10_THROW_ERROR(DistBackendError, "tutti: " + std::string(operation) + " on communicator '" + name_ +
                                          "': " + late.what_without_backtrace());
  } catch (...) {
    link_->look_for_failure();
    throw;
  }
  if (!async) return c10::make_intrusive<comms::TorchWorkCompleted>();
  const Milliseconds timeout = options.timeout.count() > 0 ? options.timeout : options_.timeout;
  return CallWork::make(std::move(call), {gpu, timeout, limit, link_, generation_, operation});
}

}  // namespace tutti::torchcomms
