// How a collective runs.
#include <algorithm>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "algorithm/two_level/scopes.h"
#include "algorithm/user/identity.h"
#include "base/collective_traits.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/communicator_impl.h"
#include "communicator/running_here.h"
#include "device/cpu/arena.h"
#include "device/cpu/kernels.h"

namespace tutti {
namespace {

// How many of the blocks in tutti/call.h a rank has on either side.
int input_blocks(Collective c, int ranks) noexcept { return traits_of(c).input_blocks ? ranks : 1; }
int output_blocks(Collective c, int ranks) noexcept { return traits_of(c).output_blocks ? ranks : 1; }

std::size_t bytes_in(const Blocks& blocks, int count) noexcept {
  std::size_t bytes = 0;
  for (int b = 0; b < count; ++b) bytes += blocks.size(b);
  return bytes;
}

// All of a block list's memory, if it is one piece; else nothing.
std::span<std::byte> piece_of(const Blocks& blocks, int count) noexcept {
  if (blocks.pointers != nullptr || blocks.base == nullptr) return {};
  return {blocks.base, blocks.bytes * static_cast<std::size_t>(count)};
}
std::span<std::byte> input_of(const Call& call, int ranks) noexcept {
  return piece_of(call.input, input_blocks(call.collective, ranks));
}
std::span<std::byte> output_of(const Call& call, int ranks) noexcept {
  return piece_of(call.output, output_blocks(call.collective, ranks));
}

}  // namespace

void CommunicatorImpl::make_record(const Call& call, const UserAlgorithm* chosen, CallRecord& record) const noexcept {
  record_call(call, record);
  record.sequence = sequence_ + 1;
  record.mapped_input = record.mapped_output = kNotMapped;
  record.algorithm = algorithms_.identity();
  if (chosen != nullptr) {
    record.algorithm = fold(chosen->identity());
    name_algorithm(record, chosen->name());
  }
  record.hash = fingerprint(record);
  if (call.uneven && context_.host == nullptr) record.hash = with_common_sizes(call, record.hash);
}

// Between hosts blocks travel in segments and by way of other ranks: nobody there compares the sizes of two ranks'
// blocks. On one host check_block_sizes() does.
std::uint32_t CommunicatorImpl::with_common_sizes(const Call& call, std::uint32_t hash) const noexcept {
  if (call.collective != Collective::kAllGather && call.collective != Collective::kReduceScatter) return hash;
  const Blocks& blocks = call.collective == Collective::kAllGather ? call.output : call.input;
  for (int r = 0; r < size_; ++r) hash = with_number(hash, blocks.size(r));
  return hash;
}

CallShape CommunicatorImpl::shape_of(const Call& call) const noexcept {
  CallShape shape;
  shape.collective = call.collective;
  shape.dtype = call.dtype;
  shape.op = call.op;
  shape.bytes = call.uneven ? 0 : block_bytes(call, rank_);
  shape.ranks = size_;
  shape.hosts = formed_.ranks.hosts();
  shape.uneven = call.uneven;
  shape.root = has_root(call.collective) ? call.root : -1;
  shape.crowded = formed_.host != nullptr && formed_.host->crowded();
  return shape;
}

void CommunicatorImpl::run(const Call& call, std::chrono::milliseconds timeout) {
  with_memory([&] {
    check(call);
    check_call_timeout(call.collective, timeout);
    if (!queue_.empty() && !queue_.on_own_thread()) {
      throw_if_running_here(to_string(call.collective).data());
      push(call, timeout, nullptr)->wait();
      return;
    }
    run_locked(call, timeout, nullptr);
  });
}

// Memory is taken now, in the caller's thread: one that is refused takes no place in the queue. What a selector of the
// program's chooses is known when the call runs.
WorkPtr CommunicatorImpl::push(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) {
  const auto chosen = call.choice != nullptr ? algorithms_.made(*call.choice->algorithm) : nullptr;
  reserve(call, chosen.get());
  WorkPtr work = queue_.push(call, timeout, std::move(keep_alive));
  queued_.fetch_add(1, std::memory_order_relaxed);  // see sequence()
  return work;
}

// One that is refused before it has a number would leave that to the call queued behind it, while the peers make this
// one: so the group ends.
void CommunicatorImpl::run_queued(const Call& call, std::chrono::milliseconds timeout) {
  bool numbered = false;
  const auto refused = [&] {
    // relaxed: this thread has set it, if this call did; if another did, the error is either's.
    return !numbered && !failed_.load(std::memory_order_relaxed);
  };
  try {
    run_locked(call, timeout, &numbered);
  } catch (const std::exception& why) {
    if (!refused()) throw;
    const auto* const error = dynamic_cast<const Error*>(&why);
    if (error != nullptr ? error->kind() == ErrorKind::kExhausted
                         : dynamic_cast<const std::bad_alloc*>(&why) != nullptr) {
      const std::lock_guard lock(run_mutex_);
      CallRecord record;
      make_record(call, nullptr, record);
      throw Error(starved_by(record, rank_, why));
    }
    abort_because("a call in its queue was refused: " + std::string(why.what()));
    throw;
  }
}

WorkPtr CommunicatorImpl::submit(const Call& call, std::chrono::milliseconds timeout,
                                 std::shared_ptr<void> keep_alive) {
  return with_memory([&] {
    check(call);
    check_call_timeout(call.collective, timeout);
    throw_if_unusable();
    return push(call, timeout, std::move(keep_alive));
  });
}

void CommunicatorImpl::throw_if_running_here(const char* what) const {
  if (RunningHere::is_in(RunningHere::innermost(), this)) throw_running_here(what);
}

void CommunicatorImpl::throw_running_here(const char* what) {
  throw_error(ErrorKind::kUnsupported,
              std::string(what) +
                  ": called by a callback of a message, or a handler of a signal, in the course of another collective "
                  "of this group: make it elsewhere, or asynchronously");
}

TurnLock CommunicatorImpl::take_turn(std::string_view what, Deadline& deadline) {
  const auto who = [&] { return std::string(what) + " of group '" + options_.name + "'"; };
  TurnLock turn = tutti::take_turn(run_mutex_, deadline, who);
  if (turn) [[likely]]
    return turn;
  throw_error(ErrorKind::kTimeout, who() + " on rank " + std::to_string(rank_) +
                                       ": another thread's call of the group has not ended in the " +
                                       std::to_string(deadline.timeout().count()) +
                                       " ms that this one may take. It has not begun, and nothing has been sent");
}

void CommunicatorImpl::run_locked(const Call& call, std::chrono::milliseconds timeout, bool* numbered) {
  const RunningHere*& running = RunningHere::innermost();
  if (RunningHere::is_in(running, this)) throw_running_here(to_string(call.collective).data());
  const RunningHere here(running, this);
  // A call of the queue that gave up here would leave its place to the next one.
  Deadline of_turn = numbered != nullptr ? Deadline::never() : Deadline::after(effective(timeout));
  const auto turn = take_turn(to_string(call.collective), of_turn);
  throw_if_unusable();
  const UserAlgorithmPtr chosen = chosen_for(call);
  Dispatch how;
  if (chosen != nullptr) how.chosen = algorithms_.made(*chosen);
  // What may find no memory comes before the call has a number.
  reserve(call, how.chosen.get());
  context_.memory.begin();
  const Call& effective_call = call.op == ReduceOp::kPremulSum ? premultiplied(call) : call;
  const std::size_t bytes = block_bytes(call, rank_);
  const bool timed = metrics_.wants_time(bytes);
  const std::int64_t start = timed ? now_ns() : 0;
  context_.deadline = Deadline::after(effective(timeout));
  make_record(call, chosen.get(), context_.record);
  sequence_ = context_.record.sequence;
  if (numbered != nullptr) {
    *numbered = true;
  } else {
    direct_.store(direct_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);  // see sequence()
  }
  const std::uint64_t entry =
      recorder_.add(context_.record, call.root, FlightRecorder::State::kStarted, context_.deadline.timeout().count());
  if (context_.host != nullptr) context_.host->time_waits(timed);

  context_.detail.clear();
  context_.compared = {};
  Outcome outcome = dispatch(effective_call, how);
  if (!outcome.ok()) [[unlikely]] {
    recorder_.update(entry, FlightRecorder::State::kFailed);
    throw Error(call_failed(outcome));
  }
  take_tensors_back(true);
  if (how.refused != nullptr) [[unlikely]] {
    recorder_.update(entry, FlightRecorder::State::kFailed);
    try {
      throw_error(ErrorKind::kUnsupported, describe(context_.record) + ": the algorithm " + how.refused);
    } catch (const std::bad_alloc&) {  // it is too late to say that nothing has been sent
      throw Error(starved_);
    }
  }
  recorder_.update(entry, FlightRecorder::State::kCompleted);
  metrics_.record(static_cast<int>(call.collective), bytes, how.ran != nullptr ? how.ran->name() : "alone",
                  timed ? now_ns() - start : -1, timed && context_.host != nullptr ? context_.host->waited_ns() : 0);
}

Error CommunicatorImpl::call_failed(Outcome outcome) noexcept {
  FailureContext context;
  context.mine = context.ours = context_.record;
  context.timeout = context_.deadline.timeout();
  try {
    context.detail = context_.detail;
    explain_failure(outcome, context);
    context.our_algorithm = algorithms_.name_of(context.ours.algorithm);
    context.their_algorithm = algorithms_.name_of(context.theirs.algorithm);
  } catch (const std::bad_alloc&) {  // then the error says less
  }
  // The peers first: it may take a while to make memory this process's own.
  const Error error = poison(outcome, context);
  take_tensors_back(false);
  return error;
}

void CommunicatorImpl::reserve(const Call& call, const Algorithm* algorithm) {
  std::size_t bytes = multiplied_bytes(call);
  if (context_.hosts != nullptr) {
    const std::shared_ptr<const Selector> selector = algorithm == nullptr ? algorithms_.hold_selector() : nullptr;
    if (selector != nullptr) algorithm = selector->select(shape_of(call));
    if (algorithm != nullptr) bytes += algorithm->memory(call, context_);
  }
  if (bytes == 0) return;
  try {
    context_.memory.reserve(bytes);
  } catch (const std::bad_alloc&) {
    throw_error(ErrorKind::kExhausted, std::string(to_string(call.collective)) + " of group '" + options_.name +
                                           "' on rank " + std::to_string(rank_) + ": no memory for the " +
                                           std::to_string(bytes) +
                                           " bytes that it takes beside its tensors. Nothing has been sent: free some "
                                           "memory and call again");
  }
}

// Of the call's memory: its input, where that is to be multiplied, and where its blocks begin.
std::size_t CommunicatorImpl::multiplied_bytes(const Call& call) const noexcept {
  if (call.op != ReduceOp::kPremulSum || !reduces(call.collective)) return 0;
  const int blocks = input_blocks(call.collective, size_);
  return CallMemory::bytes_of<std::byte>(bytes_in(call.input, blocks)) +
         CallMemory::bytes_of<void*>(static_cast<std::size_t>(blocks));
}

// The call on an input that has been multiplied, in memory of our own: a call that fails must leave its input alone.
const Call& CommunicatorImpl::premultiplied(const Call& call) noexcept {
  if (!reduces(call.collective)) return call;
  const int count = input_blocks(call.collective, size_);
  const std::span<void*> blocks = context_.memory.take<void*>(static_cast<std::size_t>(count));
  std::byte* at = context_.memory.take<std::byte>(bytes_in(call.input, count)).data();
  for (int b = 0; b < count; ++b) {
    blocks[static_cast<std::size_t>(b)] = at;
    cpu::scale(at, call.input.data(b), call.input.size(b) / size_of(call.dtype), call.dtype, call.factor);
    at += call.input.size(b);
  }
  factor_call_ = call;
  factor_call_.input.base = static_cast<std::byte*>(blocks[0]);
  factor_call_.input.pointers = call.input.pointers != nullptr ? blocks.data() : nullptr;
  return factor_call_;
}

// Completes what the algorithm has said by what the ranks of this host have announced.
void CommunicatorImpl::explain_failure(Outcome& outcome, FailureContext& context) {
  HostChannel* host = formed_.host.get();
  bool announced = context_.host != nullptr;  // the difference is one of announcements
  if (host != nullptr && outcome.status == Status::kPeerFailed) {
    // A peer found the difference first. Both calls are to be named on every rank.
    if (const int peer = host->find_mismatch(); peer >= 0) {
      outcome = {Status::kMismatch, place_.rank_at(peer)};
      announced = true;
    }
  }
  if (host != nullptr && outcome.status == Status::kTimeout) {
    context.missing = host->missing();
    for (int& missing : context.missing) missing = place_.rank_at(missing);
  }
  if (outcome.status != Status::kMismatch) return;
  if (announced) {
    context.ours = host->mismatched_mine();
    context.theirs = host->mismatched_theirs();
    return;
  }
  context.theirs = context_.mismatched;
  if (context_.compared.sequence != 0) context.ours = context_.compared;
}

Outcome CommunicatorImpl::dispatch(const Call& call, Dispatch& how) noexcept {
  if (size_ == 1) {
    run_alone(call);
    return kOkOutcome;
  }
  CallShape shape = shape_of(call);
  const Selector& selector = algorithms_.selector();
  const Algorithm* algorithm = how.chosen != nullptr ? how.chosen.get() : selector.select(shape);
  if (context_.host != nullptr && (algorithm == nullptr || !algorithm->announces())) {
    if (Outcome outcome = announce(call, shape); !outcome.ok()) return outcome;
    if (how.chosen == nullptr) algorithm = selector.select(shape);
    if (shape.mapped_input || shape.mapped_output) metrics_.count_mapped();
  }
  if (algorithm == nullptr) return {Status::kInternal, -1};
  if (context_.hosts != nullptr && !algorithm->announces()) {
    if (Outcome outcome = announce_here(); !outcome.ok()) return outcome;
  }
  if (how.chosen != nullptr) {
    how.refused = algorithm->refusal(shape);
    if (how.refused != nullptr) return kOkOutcome;  // nothing has been sent but the announcements, which agree
  }
  how.ran = algorithm;
  const Outcome outcome = algorithm->run(call, context_);
  const HostChannel* host = formed_.host.get();
  if (!outcome.ok() || host == nullptr) return outcome;
  const Outcome life = host->check_given_up();
  return context_.hosts != nullptr ? of_group(context_, life) : life;
}

// The arena, if it may hold tensors of this call that peers could use where they lie.
Arena* CommunicatorImpl::arena_for(const Call& call) const noexcept {
  return context_.host != nullptr && context_.host->arenas_mapped() && !call.uneven ? process_arena() : nullptr;
}

// From here to the end of the call peers may touch those of its tensors that are mapped.
void CommunicatorImpl::lend_tensors(const Call& call, CallRecord& record) noexcept {
  Arena* arena = arena_for(call);
  if (arena == nullptr) return;
  lent_ = {input_of(call, size_), output_of(call, size_)};
  record.mapped_input = arena->lend(lent_[0].data(), lent_[0].size());
  record.mapped_output = arena->lend(lent_[1].data(), lent_[1].size());
  if (record.mapped_input == kNotMapped) lent_[0] = {};
  if (record.mapped_output == kNotMapped) lent_[1] = {};
}

// `done`: all peers have ended the call. Else a stopped one may resume in the middle of it.
void CommunicatorImpl::take_tensors_back(bool done) noexcept {
  if (lent_[0].data() == nullptr && lent_[1].data() == nullptr) return;
  process_arena()->take_back(lent_, done);
  lent_ = {};
}

// What a peer says of its tensors must lie in what it has mapped, before anything is read or written there.
bool CommunicatorImpl::lies_in_arena(const Call& call, int peer) const noexcept {
  const HostChannel& host = *context_.host;
  const CallRecord& theirs = host.peer_record(peer);
  const std::size_t block = block_bytes(call, rank_);
  const auto lies = [&](std::uint64_t offset, int blocks) {
    return offset == kNotMapped || host.in_arena(peer, offset, block * static_cast<std::size_t>(blocks)) != nullptr;
  };
  return lies(theirs.mapped_input, input_blocks(call.collective, size_)) &&
         lies(theirs.mapped_output, output_blocks(call.collective, size_));
}

// Announces a large call and learns from all announcements what the choice of the algorithm needs.
Outcome CommunicatorImpl::announce(const Call& call, CallShape& shape) noexcept {
  HostChannel& host = *context_.host;
  CallRecord& record = context_.record;
  lend_tensors(call, record);
  if (Outcome outcome = host.begin(record, context_.deadline); !outcome.ok()) return outcome;
  if (call.uneven) publish_block_sizes(call);
  host.announce();
  if (Outcome outcome = host.await_records(context_.deadline); !outcome.ok()) return outcome;
  shape.announced = true;
  if (call.uneven) return check_block_sizes(call);
  shape.reads_across = host.reads_across();
  shape.mapped_input = shape.mapped_output = true;
  const CollectiveTraits& traits = traits_of(call.collective);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_ && !lies_in_arena(call, r)) return {Status::kCorrupt, r};
    const CallRecord& said = r == rank_ ? record : host.peer_record(r);
    const bool root = r == call.root;
    if ((root || !traits.root_reads) && said.mapped_input == kNotMapped) shape.mapped_input = false;
    if ((root || !traits.root_writes) && said.mapped_output == kNotMapped) shape.mapped_output = false;
  }
  return kOkOutcome;
}

// Of several hosts: tells the ranks of this one, of which some may run in two levels what this one does not.
Outcome CommunicatorImpl::announce_here() noexcept {
  HostChannel* host = place_.host;
  if (host == nullptr) return kOkOutcome;
  return of_group(context_, host->begin_and_announce(context_.record, context_.deadline));
}

void CommunicatorImpl::publish_block_sizes(const Call& call) noexcept {
  CallRecord& record = context_.record;
  record.largest = 0;
  std::uint64_t* sizes = context_.host->sizes(rank_);
  const CollectiveTraits& traits = traits_of(call.collective);
  const bool sends_list = traits.input_blocks && (!traits.root_reads || rank_ == call.root);
  const bool sends = sends_list || traits.output_blocks;
  for (int r = 0; r < size_; ++r) {
    sizes[r] = !sends ? 0 : sends_list ? call.input.size(r) : call.input.size(0);
    record.largest = std::max<std::uint64_t>(record.largest, sizes[r]);
  }
  context_.host->amend(record);
}

// What a peer sends must be what this rank has room for, before anything is written.
Outcome CommunicatorImpl::check_block_sizes(const Call& call) noexcept {
  HostChannel& host = *context_.host;
  const Collective c = call.collective;
  for (int r = 0; r < size_; ++r) {
    const bool receives = c == Collective::kScatter  ? r == call.root
                          : c == Collective::kGather ? rank_ == call.root
                                                     : true;
    if (!receives) continue;
    // Every rank must hand the same list to an uneven reduce-scatter.
    const bool single = traits_of(c).takes_a_block();
    const std::size_t room = call.output.size(single ? 0 : r);
    if (host.sizes(r)[rank_] != room) {
      host.blame(r);
      return {Status::kMismatch, r};
    }
  }
  return kOkOutcome;
}

void CommunicatorImpl::run_alone(const Call& call) const noexcept {
  if (call.collective == Collective::kBarrier) return;
  const Blocks& in = call.input;
  const Blocks& out = call.output;
  if (in.data(0) != out.data(0) && out.size(0) != 0) cpu::copy(out.data(0), in.data(0), out.size(0));
}

std::string CommunicatorImpl::explain(const Call& call) const {
  check(call);
  CallShape shape = shape_of(call);
  shape.reads_across = context_.host != nullptr && context_.host->reads_across();
  // What the other ranks' tensors are is not known without the call: taken to be like this rank's, and one that the
  // root alone has to be like the one that this rank has.
  if (const Arena* arena = arena_for(call); arena != nullptr) {
    const auto mapped = [arena](std::span<std::byte> tensor) {
      return arena->offset_of(tensor.data(), tensor.size()) != kNotMapped;
    };
    const CollectiveTraits& traits = traits_of(call.collective);
    const bool input = mapped(input_of(call, size_)), output = mapped(output_of(call, size_));
    shape.mapped_input = traits.root_reads && rank_ != call.root ? output : input;
    shape.mapped_output = traits.root_writes && rank_ != call.root ? input : output;
  }
  return algorithms_.explain(shape);
}

}  // namespace tutti
