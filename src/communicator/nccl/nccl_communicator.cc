#include "communicator/nccl/nccl_communicator.h"

#include <thread>
#include <utility>

#include "base/interruption.h"
#include "base/thread.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/nccl/joining.h"

namespace tutti {
namespace {

// How long a call that is inside NCCL may take to come back by itself before NCCL is told to end it.
constexpr std::chrono::seconds kPatienceWithNccl(1);
constexpr std::chrono::seconds kMostOfTheEnd(10), kMostBesideGraphs(1);
constexpr std::chrono::milliseconds kLookOutEvery(250);
// How long the rank is looked for whose end NCCL has noticed.
constexpr std::chrono::seconds kTimeForAName(2);

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
  if (ending.exchange(true, std::memory_order_acq_rel)) return;
  {
    const TurnLock turn(order, std::chrono::system_clock::now() +
                                   kPatienceWithNccl);  // without it, too: that is what ncclCommAbort is for
    if (ncclComm_t const mine = comm.exchange(nullptr, std::memory_order_acq_rel)) {
      at_the_end(*work, [&] { return nccl.ncclCommAbort(mine); });
    }
  }
  ended();
}

void NcclCommunicator::Life::destroy() noexcept {
  {
    const std::lock_guard lock(order);
    if (ncclComm_t const mine = comm.exchange(nullptr, std::memory_order_acq_rel)) {
      at_the_end(*work, [&] { return nccl.ncclCommDestroy(mine); });
    }
  }
  ended();
}

void NcclCommunicator::Life::ended() noexcept {
  const std::lock_guard lock(mutex);
  word.reset();
  over = true;
  changed.notify_all();
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
      calls_(*work_, options_.settings().flight_recorder_entries),
      timeout_(options.timeout) {
  check_group_timeout(options_.name, options_.timeout);
  DeviceStream const own = work_->own_stream();
  life_->word = work_->memory(1, own);
  NcclJoin join{options_.name, why_, options_.timeout, {}};
  if (!options_.messages_only) {
    work_->wait(own);  // other streams use the word
    life_->comm.store(join_nccl(*bootstrap, join, nccl_, work_), std::memory_order_release);
  } else {
    join.first = connecting(nccl_, life_->word, rank_, own);
    const StreamWork::Mark begin = work_->mark(own);
    life_->comm.store(join_nccl(*bootstrap, join, nccl_, work_), std::memory_order_release);
    // Under way as any other call: the peer may be gone before it has come to it.
    try {
      calls_.enter(record_of_message(rank_ == 0, 1, DataType::kByte, 0), {}, options_.timeout, begin, own);
      calls_.leave(work_->mark(own));
    } catch (...) {
      life_->abort();
      throw;
    }
  }
  bootstrap_->formed();
}

NcclCommunicator::~NcclCommunicator() {
  const auto failed = [&] {
    const std::lock_guard lock(state_);
    return failed_;
  };
  for (look(); !failed() && !calls_.none(); look()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::thread lookout;
  {
    const std::lock_guard lock(state_);
    leaving_ = true;
    lookout = std::move(lookout_);
    changed_.notify_all();
  }
  if (lookout.joinable()) lookout.join();
  if (!failed()) {  // else the end is on its way
    try {
      start_thread("NCCL's end", [life = life_] { life->destroy(); }).detach();
    } catch (const std::exception&) {
      return;  // it stays, with the process
    }
  }
  // NCCL does not come back before all graphs of its calls are gone, which may be when the process is.
  const auto most = captured_.load(std::memory_order_relaxed) ? kMostBesideGraphs : kMostOfTheEnd;
  std::unique_lock lock(life_->mutex);
  life_->changed.wait_for(lock, most, [&] { return life_->over; });
}

std::string NcclCommunicator::named() const { return "group '" + options_.name + "' on rank " + std::to_string(rank_); }

void NcclCommunicator::check(const Call& call) const {
  check_call(call, rank_, size_);
  check_nccl_reduction(call, work_->reduces_fp8());
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
  enqueue({{record, -1, block_bytes(call, rank_)}}, stream, timeout, Order::kInOrder, [&](ncclComm_t comm) {
    const std::size_t bytes = nccl_scratch_bytes(call, size_);
    const auto scratch = call.collective == Collective::kBarrier ? life_->word
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
  Entries entries;
  for (const DeviceMessage& m : messages) {
    check_message(m, rank_, size_);
    entries.push_back({record_of_message(m.send, m.bytes, DataType::kByte, m.tag), m.peer, m.bytes});
  }
  if (entries.empty()) return;
  enqueue(entries, stream, timeout, Order::kAsNccl, [&](ncclComm_t comm) {
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

void NcclCommunicator::enqueue(const Entries& entries, DeviceStream stream, std::chrono::milliseconds timeout,
                               Order order, const std::function<void(ncclComm_t)>& issue) {
  const std::lock_guard lock(life_->order);
  throw_if_failed();
  try {
    const bool captured = work_->is_capturing(stream);
    if (captured) captured_.store(true, std::memory_order_relaxed);
    const bool in_order = order == Order::kInOrder && !captured;
    if (in_order && behind_ != nullptr) work_->follow(behind_, stream);
    const auto limit = timeout.count() > 0 && !captured ? timeout : this->timeout();
    calls_.enter(entries.front().record, entries, limit, captured ? nullptr : work_->mark(stream), stream);
    work_->run([&] { issue(life_->comm.load(std::memory_order_acquire)); });
    StreamWork::Mark end = captured ? nullptr : work_->mark(stream);
    if (in_order) behind_ = end;
    calls_.leave(std::move(end));
  } catch (const std::exception& error) {
    calls_.leave_failed();
    throw_if_failed();  // which has ended it, and is the reason
    const auto* const known = dynamic_cast<const Error*>(&error);
    fail(known != nullptr ? known->kind() : ErrorKind::kExhausted, error.what());
    throw;
  }
}

void NcclCommunicator::require_there() const {
  // acquire: pairs with the release in Life::abort().
  if (life_->ending.load(std::memory_order_acquire)) throw_error(ErrorKind::kAborted, named() + ": was ended");
}

void NcclCommunicator::require(ncclResult_t result, const char* function) const {
  require_there();  // whatever NCCL says
  if (result == ncclSuccess) return;
  throw Error(nccl_error(nccl_, result, named() + ": " + function));
}

void NcclCommunicator::grouped(const std::function<void()>& calls) {
  require_there();
  // Without require(), which also throws where the group has begun, but the communicator is about to end.
  const ncclResult_t begun = nccl_.ncclGroupStart();
  if (begun != ncclSuccess) throw Error(nccl_error(nccl_, begun, named() + ": ncclGroupStart"));
  try {
    calls();
  } catch (...) {
    // Or this thread's later calls would be of it. Of a communicator that is gone NCCL's group must not be touched; one
    // that is about to end is there as long as this thread has the order of calls, but for the patience of abort().
    if (life_->comm.load(std::memory_order_acquire) != nullptr) static_cast<void>(nccl_.ncclGroupEnd());
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
  require_there();
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

void NcclCommunicator::look() noexcept {
  try {
    calls_.settle();
    if (failure()) return;
    if (const auto late = calls_.late()) {
      return fail(ErrorKind::kTimeout, named() + ": " + describe(late->record) + " over NCCL " +
                                           (late->inside ? "was not begun" : "has not ended") + " within " +
                                           std::to_string(late->timeout.count()) +
                                           " ms: a rank has not made it, or cannot be reached. tutti.flight_record() "
                                           "has the last calls of each rank");
    }
    {
      const std::unique_lock order(life_->order, std::try_to_lock);
      ncclComm_t const comm = order ? life_->comm.load(std::memory_order_acquire) : nullptr;
      ncclResult_t result = ncclSuccess;
      const bool asked = comm != nullptr && nccl_.ncclCommGetAsyncError(comm, &result) == ncclSuccess;
      if (asked && result != ncclSuccess && result != ncclInProgress) {
        hear(nccl_error(nccl_, result, named() + ": NCCL"));
      }
    }
    if (calls_.waiting(kLookOutEvery)) start_looking_out();
  } catch (const std::exception&) {  // for want of memory: the next look finds it again
  }
}

void NcclCommunicator::hear(const Error& said) {
  {
    const std::lock_guard lock(state_);
    if (!said_) {
      said_.emplace(said);
      said_at_ = Clock::now();
    }
    if (Clock::now() - said_at_ < kTimeForAName) return;
  }
  fail(said.kind(), said.what());
}

void NcclCommunicator::start_looking_out() {
  std::thread before;
  {
    const std::lock_guard lock(state_);
    if (looking_out_ || leaving_) return;
    std::thread next = start_thread("looking out for lost ranks", [this] {
      std::optional<Error> lost;
      for (std::uint64_t waited = 0; look_out(lost, waited);) {
      }
    });
    before = std::exchange(lookout_, std::move(next));
    looking_out_ = true;
  }
  if (before.joinable()) before.join();  // it is over
}

bool NcclCommunicator::look_out(std::optional<Error>& lost, std::uint64_t& waited) {
  try {
    {
      std::unique_lock lock(state_);
      changed_.wait_for(lock, kLookOutEvery, [&] { return leaving_; });
    }
    calls_.settle();
    const auto waits = calls_.waiting(kLookOutEvery);
    {
      const std::lock_guard lock(state_);
      if (leaving_ || failed_ || !waits) return looking_out_ = false;
    }
    // A rank that has left in good order has done its part: only what goes on waiting is at an end.
    if (lost && waited == waits->number) {
      fail(lost->kind(), named() + ": " + describe(waits->record) + " over NCCL: " + lost->what());
    }
    waited = waits->number;
    bootstrap_->watch();
  } catch (const Error& error) {
    // This rank's own end, or want of memory, is told in other ways.
    if (error.kind() == ErrorKind::kAborted || error.kind() == ErrorKind::kExhausted) return true;
    try {
      lost.emplace(error);
    } catch (const std::bad_alloc&) {
    }
  } catch (const std::exception&) {  // for want of memory: the next look finds it again
  }
  return true;
}

void NcclCommunicator::fail(ErrorKind kind, const std::string& text) noexcept {
  {
    const std::lock_guard lock(state_);
    if (failed_) return;
    failed_ = true;
    kind_ = kind;
    try {
      text_ = text;
    } catch (const std::bad_alloc&) {
    }
  }
  calls_.fail();
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

// Looks itself, too: the process's watch may have been turned off.
void NcclCommunicator::synchronize(DeviceStream stream) {
  const StreamWork::Mark mark = work_->mark(stream);
  for (const auto start = Clock::now(); !work_->reached(mark);) {
    if (!go_on_waiting()) break;
    if (Clock::now() - start < std::chrono::milliseconds(1)) continue;
    look();
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  if (waits_in_fork()) throw_if_interrupted("a wait for the GPU");
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
  return "nccl";
}

std::string NcclCommunicator::candidates(const Call& call) const {
  return explain(call) + " " + nccl_.version + ": " + why_;
}

Metrics NcclCommunicator::metrics() const { return calls_.metrics(); }

void NcclCommunicator::reset_metrics() noexcept { calls_.reset_metrics(); }

std::string NcclCommunicator::flight_record() const { return calls_.dump(options_.name, rank_, size_); }

}  // namespace tutti
