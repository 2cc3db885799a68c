#include "channel/host_channel.h"

#include <sched.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/cross_memory.h"
#include "base/futex.h"
#include "base/interruption.h"
#include "base/process.h"
#include "channel/rescued_waits.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kSliceNs = 100'000'000;     // a sleeper looks at its peers at least this often
constexpr std::int64_t kFirstSliceNs = 1'000'000;  // its first sleep is shorter: see wait_slowly()
constexpr std::uint32_t kHotPolls = 64;            // polls without a pause, before a clock is read
constexpr std::int64_t kMostYieldNs = 2'000'000;   // of all yields of a wait
constexpr int kFewRanks = 8;                       // up to so many, sleepers pay for publishers' fences

std::uint64_t segment_id(int fd) {
  struct stat st {};
  if (::fstat(fd, &st) != 0) throw_system_error(ErrorKind::kInternal, "fstat of the host segment", errno);
  return static_cast<std::uint64_t>(st.st_ino) ^ (static_cast<std::uint64_t>(st.st_dev) << 40);
}

// One reading: another process may write there at any time, and what is checked must be what is used.
CallRecord copy_once(const CallRecord& shared) noexcept {
  CallRecord copy;
  std::memcpy(&copy, &shared, sizeof copy);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler may not read there again instead
  return copy;
}

}  // namespace

HostChannel::HostChannel(HostGroup group, const SegmentLayout& layout, WaitPolicy policy)
    : group_(std::move(group)), layout_(layout), index_(group_.index), policy_(policy) {
  cache_share_ = last_cache_bytes() / 2 / static_cast<std::size_t>(ranks());
  const auto n = static_cast<std::size_t>(ranks());
  segment_ = PeerArena::open(group_.segment.get(), segment_id(group_.segment.get()), layout_.total_bytes());
  if (!segment_)
    throw_error(ErrorKind::kExhausted, "the host segment of " + std::to_string(layout_.total_bytes()) +
                                           " bytes cannot be mapped: raise the limit on address space (ulimit -v)");
  base_ = segment_->data();
  stage_made_.assign(layout_.shape().stage_bytes / kStageRun + 1, false);
  group_.segment.reset();
  verified_.assign(n, 0);
  records_.assign(n, {});
  arenas_.assign(n, nullptr);
  arenas_mapped_ = true;
  const Arena* own = process_arena();
  for (std::size_t r = 0; r < n; ++r) {
    HostMember& member = group_.members[r];
    pidfds_.push_back(PeerProcesses::instance().share(member.process, std::move(member.pidfd)));
    life_.push_back({static_cast<int>(r) == index_ ? -1 : pidfds_[r]->get(), POLLIN, 0});
    // Members in this process, this rank among them, were sent no descriptor: theirs is this process's own arena.
    const bool here = own != nullptr && member.arena_id == own->id();
    const int arena_fd = here ? own->fd() : member.arena.get();
    std::shared_ptr<PeerArena> arena =
        arena_fd >= 0 ? PeerArena::open(arena_fd, member.arena_id, member.arena_bytes) : nullptr;
    member.arena.reset();
    if (arena) arenas_[r] = arena->data();
    arenas_mapped_ = arenas_mapped_ && arena != nullptr;
    peer_arenas_.push_back(std::move(arena));
  }
  // Another for each group of each process.
  probe_word_ = static_cast<std::uint64_t>(now_ns()) ^ static_cast<std::uint64_t>(::getpid()) << 40 ^
                reinterpret_cast<std::uintptr_t>(this);
}

HostChannel::~HostChannel() { leave(); }

// By loads: they make a page as stores do, and harm nothing that may lie there.
void HostChannel::make_stage_run(std::size_t run) noexcept {
  constexpr std::size_t kPage = 4096;
  const std::byte* const area = stage(index_);
  const std::size_t end = std::min(layout_.shape().stage_bytes, (run + 1) * kStageRun);
  for (std::size_t at = run * kStageRun; at < end; at += kPage) {
    static_cast<void>(*static_cast<const volatile std::byte*>(area + at));
  }
  stage_made_[run] = true;
}

Outcome HostChannel::join(Deadline& deadline) noexcept {
  const std::uint32_t mine = kJoinedBit | (register_light_barrier() ? kLightBarrierBit : 0) |
                             (arenas_mapped_ ? kArenasBit : 0) | (policy_.crowded ? 0 : kRoomyBit);
  // relaxed: only this rank writes it
  if (control(index_).joined.load(std::memory_order_relaxed) == 0) {
    control(index_).probe_address = reinterpret_cast<std::uintptr_t>(&probe_word_);
    control(index_).probe_word = probe_word_;
    // release: this rank's mapping is complete; pairs with the acquire below in the other ranks.
    control(index_).joined.store(mine, std::memory_order_release);
  }
  std::uint32_t common = mine;
  for (int peer = 0; peer < ranks(); ++peer) {
    std::uint32_t theirs = 0;
    for (int tries = 0; (theirs = control(peer).joined.load(std::memory_order_acquire)) == 0; ++tries) {
      if (tries < 1000) {
        sched_yield();
        continue;
      }
      if (Outcome outcome = check(peer); !outcome.ok()) return outcome;
      if (deadline.expired()) return {Status::kTimeout, peer};
      const timespec pause{0, 200'000};
      nanosleep(&pause, nullptr);
      if (!go_on_waiting()) return {Status::kAborted, index_};
    }
    common &= theirs;
  }
  light_barrier_ = (common & kLightBarrierBit) != 0 && ranks() <= kFewRanks;
  arenas_mapped_ = (common & kArenasBit) != 0;
  crowded_ = (common & kRoomyBit) == 0;
  if (control(index_).reads.load(std::memory_order_relaxed) == 0) {  // relaxed: only this rank writes it
    // release: the announcement that follows publishes it, too
    control(index_).reads.store(can_read_peers() ? kReads : kReadsNot, std::memory_order_release);
  }
  return kOkOutcome;
}

// All peers have joined. That a process of this number is the peer's is known by what it says to have in its memory.
bool HostChannel::can_read_peers() const noexcept {
  if (!policy_.reads_memory) return false;
  for (int peer = 0; peer < ranks(); ++peer) {
    std::uint64_t word = 0;
    if (pid(peer) <= 0 || read(peer, &word, control(peer).probe_address, sizeof word) != 0) return false;
    if (word != control(peer).probe_word) return false;
  }
  return index_ != 0 || cross_memory_pays();
}

bool HostChannel::reads_across() noexcept {
  // relaxed, here and below: whoever finds it out finds the same.
  if (const std::uint32_t known = reads_.load(std::memory_order_relaxed); known != 0) return known == kReads;
  std::uint32_t all = kReads;
  for (int peer = 0; peer < ranks(); ++peer) {
    // acquire: pairs with the release in join().
    const std::uint32_t theirs = control(peer).reads.load(std::memory_order_acquire);
    if (theirs == 0) return false;
    if (theirs != kReads) all = kReadsNot;
  }
  reads_.store(all, std::memory_order_relaxed);
  return all == kReads;
}

int HostChannel::read(int peer, void* to, std::uint64_t from, std::size_t bytes) const noexcept {
  return read_cross_memory(pid(peer), to, from, bytes);
}

template <class Ready>
Outcome HostChannel::wait(int peer, int awaited, Deadline& deadline, const Ready& ready) noexcept {
  for (std::uint32_t i = 0; i < kHotPolls; ++i) {
    if (ready()) [[likely]]
      return kOkOutcome;
  }
  const std::int64_t start = timing_ ? now_ns() : 0;
  const Outcome outcome = wait_slowly(peer, awaited, deadline, ready);
  if (timing_) waited_ns_ += now_ns() - start;
  return outcome;
}

template <class Ready>
Outcome HostChannel::wait_slowly(int peer, int awaited, Deadline& deadline, const Ready& ready) noexcept {
  for (Spin spin(policy_.spin_ns); spin.goes_on(); spin.pause()) {
    if (ready()) return kOkOutcome;
  }
  // On a busy machine a yield may take as long as others' turns do: two hundred of those would be seconds.
  const std::int64_t yielding_ns = policy_.yields != 0 ? now_ns() : 0;
  for (std::uint32_t i = 0; i < policy_.yields && now_ns() - yielding_ns < kMostYieldNs; ++i) {
    if (ready()) return kOkOutcome;
    sched_yield();
  }
  // Once raised, the flag stays up: what was stored before the barrier is found by a look, and whoever stores later
  // sees the flag. Linux does not interrupt a processor that was idle with this process's memory when the process
  // registered, until another process has run there (and may lack memory to interrupt any): then a store may be neither
  // found nor followed by a ring. It is visible within microseconds, so the first sleep is a short one.
  bool announced = false;
  std::int64_t slice = kFirstSliceNs;
  const auto sleep_once = [&](std::int64_t remaining) noexcept {
    const std::uint32_t seen = doorbell(WaitLane::kCollective);
    if (!announced) announce_sleep(WaitLane::kCollective, announced = true, awaited);
    const std::uint64_t before = published(awaited, WaitLane::kCollective).sum;
    if (ready()) return true;  // not to be asked again: it may hold but once
    if (!aborted()) sleep(WaitLane::kCollective, seen, std::min(remaining, slice));
    const bool unrung = doorbell(WaitLane::kCollective) == seen;
    // What the gap above lets happen in the first sleep is no lost wake-up.
    const bool excused = light_barrier_ && slice == kFirstSliceNs;
    if (unrung) slice = kSliceNs;
    if (!ready()) return false;
    if (unrung && !excused && missed_by(awaited, before, seen)) {
      rescued_waits_.fetch_add(1, std::memory_order_relaxed);  // relaxed: only this thread counts
      count_rescued_wait();
    }
    return true;
  };
  Outcome outcome;
  for (;;) {
    // The order matters: a peer that published and then left or died has still done what we wait for.
    outcome = check(peer);
    if (ready()) {
      outcome = kOkOutcome;
      break;
    }
    if (!outcome.ok()) break;
    const std::int64_t remaining = deadline.remaining_ns();
    if (remaining <= 0) {
      outcome = {Status::kTimeout, peer};
      break;
    }
    if (sleep_once(remaining)) break;
    if (!go_on_waiting()) {
      outcome = {Status::kAborted, index_};
      break;
    }
  }
  // In a child that a handler has forked the flag is the parent's.
  if (announced && !waits_in_fork()) announce_sleep(WaitLane::kCollective, false);
  return outcome;
}

HostChannel::Published HostChannel::published(int awaited, WaitLane lane) const noexcept {
  Published all;
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == index_ || (awaited >= 0 && peer != awaited)) continue;
    // acquire: pairs with the release in end_publishing(); whatever was rung by then is visible to the caller.
    const std::uint64_t word = control(peer).publishing[static_cast<int>(lane)].value.load(std::memory_order_acquire);
    all.sum += word;
    all.over = all.over && word % 2 == 0;
  }
  return all;
}

// After a sleep that nobody ended by the doorbell, which was `seen` before, with the flag still up and what was awaited
// there: whether its writer has looked for sleepers since. What is read of the writer is at least what stood there when
// it stored that, which `ready` has acquired. `before` is from the last look in vain: where nobody has published since,
// it came in another way.
bool HostChannel::missed_by(int awaited, std::uint64_t before, std::uint32_t seen) const noexcept {
  const Published now = published(awaited, WaitLane::kCollective);
  return now.over && now.sum != before && doorbell(WaitLane::kCollective) == seen;
}

bool HostChannel::nobody_publishes() const noexcept {
  return published(-1, WaitLane::kCollective).over && published(-1, WaitLane::kMessage).over;
}

// Announcements are verified in order, so that a rooted call whose root never looked at this peer is compared at last.
Outcome HostChannel::verify_up_to(int peer, std::uint64_t sequence, Deadline& deadline) noexcept {
  std::uint64_t& verified = verified_[static_cast<std::size_t>(peer)];
  while (verified < sequence) {
    const std::uint64_t next = verified + 1;
    const std::atomic<std::uint64_t>& word = cell(peer, next).word;
    std::uint64_t value = 0;
    const Outcome outcome = wait(peer, peer, deadline, [&]() noexcept {
      // acquire: makes the payload and the record visible; pairs with the release in announce().
      value = word.load(std::memory_order_acquire);
      return static_cast<std::uint32_t>(value) == static_cast<std::uint32_t>(next);
    });
    if (!outcome.ok()) return outcome;
    const CallRecord& mine = mine_[next % kWindow];
    if (static_cast<std::uint32_t>(value >> 32) != mine.hash) {
      mismatch_mine_ = mine;
      mismatch_theirs_ = copy_once(control(peer).records[next % kWindow]);
      return {Status::kMismatch, peer};
    }
    verified = next;
  }
  return kOkOutcome;
}

Outcome HostChannel::begin(const CallRecord& record, Deadline& deadline) noexcept {
  sequence_ = record.sequence;
  if (verified_by_all_ + kLag < sequence_) {
    const std::uint64_t needed = sequence_ - kLag;
    std::uint64_t least = sequence_ - 1;
    for (int peer = 0; peer < ranks(); ++peer) {
      if (peer == index_) continue;
      if (Outcome outcome = verify_up_to(peer, needed, deadline); !outcome.ok()) return outcome;
      least = std::min(least, verified_[static_cast<std::size_t>(peer)]);
      __builtin_prefetch(&cell(peer, needed + 1));  // what the next call waits for here
    }
    verified_by_all_ = least;
  }
  mine_[sequence_ % kWindow] = record;
  return kOkOutcome;
}

void HostChannel::announce() noexcept {
  RankControl& me = control(index_);
  const CallRecord& record = mine_[sequence_ % kWindow];
  me.records[sequence_ % kWindow] = record;
  const std::uint64_t word = static_cast<std::uint64_t>(record.hash) << 32 | static_cast<std::uint32_t>(sequence_);
  store_and_wake(me.cells[sequence_ % kWindow].word, word);
}

template <class Value>
void HostChannel::store_and_wake(std::atomic<Value>& word, Value value) noexcept {
  const Publishing publishing(this);
  // release: publishes what was written before: payload and record, staged data; pairs with the acquire of whoever
  // waits for the word, in verify_up_to() and await_step().
  word.store(value, std::memory_order_release);
  wake_sleepers(WaitLane::kCollective);
}

Outcome HostChannel::begin_and_announce(const CallRecord& record, Deadline& deadline) noexcept {
  const Outcome outcome = begin(record, deadline);
  if (outcome.ok()) announce();
  return outcome;
}

Outcome HostChannel::await(int peer, Deadline& deadline) noexcept {
  return peer == index_ ? kOkOutcome : verify_up_to(peer, sequence_, deadline);
}

Outcome HostChannel::await_all(Deadline& deadline) noexcept {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (Outcome outcome = await(peer, deadline); !outcome.ok()) return outcome;
  }
  verified_by_all_ = sequence_;
  return kOkOutcome;
}

Outcome HostChannel::await_records(Deadline& deadline) noexcept {
  if (Outcome outcome = await_all(deadline); !outcome.ok()) return outcome;
  for (int rank = 0; rank < ranks(); ++rank) {
    records_[static_cast<std::size_t>(rank)] =
        rank == index_ ? mine_[sequence_ % kWindow] : copy_once(control(rank).records[sequence_ % kWindow]);
  }
  return kOkOutcome;
}

std::byte* HostChannel::in_arena(int rank, std::uint64_t offset, std::size_t bytes) const noexcept {
  const auto& arena = peer_arenas_[static_cast<std::size_t>(rank)];
  if (arena == nullptr || offset > arena->bytes() || bytes > arena->bytes() - offset) return nullptr;
  return arena->data() + offset;
}

void HostChannel::blame(int peer) noexcept {
  mismatch_mine_ = mine_[sequence_ % kWindow];
  mismatch_theirs_ = copy_once(control(peer).records[sequence_ % kWindow]);
}

int HostChannel::find_mismatch() noexcept {
  const CallRecord& mine = mine_[sequence_ % kWindow];
  if (mine.sequence != sequence_) return -1;  // this rank had not begun
  for (int peer = 0; peer < ranks(); ++peer) {
    if (peer == index_) continue;
    // acquire: makes the record visible; pairs with the release in announce().
    const std::uint64_t word = cell(peer, sequence_).word.load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(word) != static_cast<std::uint32_t>(sequence_)) continue;
    if (static_cast<std::uint32_t>(word >> 32) == mine.hash) continue;
    blame(peer);
    return peer;
  }
  return -1;
}

std::vector<int> HostChannel::missing() const {
  std::vector<int> result;
  for (int peer = 0; peer < ranks(); ++peer) {
    // relaxed: for a message only.
    const auto word = static_cast<std::uint32_t>(cell(peer, sequence_).word.load(std::memory_order_relaxed));
    const auto behind = static_cast<std::uint32_t>(sequence_) - word;
    if (peer != index_ && behind != 0 && behind < (1U << 31)) result.push_back(peer);
  }
  return result;
}

void HostChannel::publish(StepLane lane, std::uint64_t value) noexcept {
  store_and_wake(control(index_).steps[static_cast<int>(lane)].value, value);
}

Outcome HostChannel::await_step(int peer, StepLane lane, std::uint64_t value, Deadline& deadline) noexcept {
  if (peer == index_) return kOkOutcome;
  const std::atomic<std::uint64_t>& word = control(peer).steps[static_cast<int>(lane)].value;
  // acquire: pairs with the release in publish().
  return wait(peer, peer, deadline, [&]() noexcept { return word.load(std::memory_order_acquire) >= value; });
}

Outcome HostChannel::await_step_all(StepLane lane, std::uint64_t value, Deadline& deadline) noexcept {
  for (int peer = 0; peer < ranks(); ++peer) {
    if (Outcome outcome = await_step(peer, lane, value, deadline); !outcome.ok()) return outcome;
  }
  return kOkOutcome;
}

std::uint64_t HostChannel::stepped(int peer, StepLane lane) const noexcept {
  // acquire: pairs with the release in publish().
  return control(peer).steps[static_cast<int>(lane)].value.load(std::memory_order_acquire);
}

Outcome HostChannel::await_condition(int peer, Condition& condition, Deadline& deadline) noexcept {
  return wait(peer, -1, deadline, [&condition]() noexcept { return condition.holds(); });
}

void HostChannel::wake_sleepers(WaitLane lane) noexcept {
  // Without the asymmetric barrier the store before this must be visible before the flags are read.
  if (!light_barrier_) std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);  // the compiler keeps the order; see the header for the rest
  const auto& flags = layout_.header(base_).sleeping[static_cast<int>(lane)];
  for (int peer = 0; peer < ranks(); ++peer) {
    // relaxed: heavy_barrier() in the sleeper, or our fence, orders it against our store.
    const std::uint16_t how = flags[peer].load(std::memory_order_relaxed);
    if (how == kAwake) [[likely]]
      continue;
    if (peer != index_ && (how < kAwaits || how - kAwaits == index_)) wake(peer, lane, how);
  }
}

void HostChannel::wake(int peer, WaitLane lane, std::uint16_t how) noexcept {
  if (how == kAtBell) {
    // acquire: pairs with the release in announce_sleep(), after the store of the name.
    std::atomic_thread_fence(std::memory_order_acquire);
    const std::uint64_t name = control(peer).bell.load(std::memory_order_relaxed);
    if (ringer_ != nullptr && name != 0) ringer_->ring(name);
    return;
  }
  // release: orders the ring before the wake; the sleeper's acquire in doorbell() pairs with it.
  control(peer).doorbells[static_cast<int>(lane)].value.fetch_add(1, std::memory_order_release);
  futex_wake_all(&control(peer).doorbells[static_cast<int>(lane)].value);
}

void HostChannel::ring_doorbell(int peer, WaitLane lane) noexcept {
  if (!light_barrier_) std::atomic_thread_fence(std::memory_order_seq_cst);
  std::atomic_signal_fence(std::memory_order_seq_cst);
  // relaxed: as in wake_sleepers().
  const std::uint16_t how =
      layout_.header(base_).sleeping[static_cast<int>(lane)][peer].load(std::memory_order_relaxed);
  if (how != kAwake) wake(peer, lane, how);
}

void HostChannel::ring_own_doorbell(WaitLane lane) noexcept {
  // Whatever made us wake ourselves is visible to the thread that wakes: see wake().
  wake(index_, lane, kOnDoorbell);
  // Whoever goes to sleep at a bell after this look sees what we wake for: pairs with the fence in announce_sleep().
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (lane == WaitLane::kMessage && control(index_).bell.load(std::memory_order_relaxed) != 0) {
    wake(index_, lane, kAtBell);
  }
}

std::uint32_t HostChannel::doorbell(WaitLane lane) const noexcept {
  // acquire: pairs with the release of whoever rang.
  return control(index_).doorbells[static_cast<int>(lane)].value.load(std::memory_order_acquire);
}

void HostChannel::announce_sleep(WaitLane lane, bool asleep, int awaited) noexcept {
  auto& flag = layout_.header(base_).sleeping[static_cast<int>(lane)][index_];
  std::uint16_t how = kAwake;
  if (asleep && lane == WaitLane::kMessage && at_bell_) {
    how = kAtBell;
  } else if (asleep) {
    how = awaited >= 0 ? static_cast<std::uint16_t>(kAwaits + awaited) : kOnDoorbell;
  }
  // release: the name of a bell is there; pairs with the fence in wake(). The barrier below orders it before the
  // sleeper's last look; clearing late costs a wake at most.
  flag.store(how, std::memory_order_release);
  if (!asleep) return;
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (light_barrier_) heavy_barrier();
}

void HostChannel::sleep(WaitLane lane, std::uint32_t seen, std::int64_t timeout_ns) noexcept {
  futex_wait(&control(index_).doorbells[static_cast<int>(lane)].value, seen, timeout_ns);
}

void HostChannel::sleep_at(const Bell* bell) noexcept {
  at_bell_ = bell != nullptr;
  // relaxed: published by the flag of the sleep there.
  if (at_bell_) control(index_).bell.store(bell->name(), std::memory_order_relaxed);
}

}  // namespace tutti
