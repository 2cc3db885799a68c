// Who lives, has left or has failed: what a rank asks before it waits on, and what it says of its own end.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/interruption.h"
#include "base/process.h"
#include "base/utf8.h"
#include "channel/host_channel.h"

namespace tutti {

bool HostChannel::died(int peer) const noexcept {
  const HostMember& member = group_.members[static_cast<std::size_t>(peer)];
  if (peer == index_) return false;
  if (const UniqueFd& pidfd = *pidfds_[static_cast<std::size_t>(peer)]; pidfd) return pidfd_ended(pidfd.get());
  return member.pid > 0 && member.pid != ::getpid() && ::kill(member.pid, 0) != 0 && errno == ESRCH;
}

Outcome HostChannel::reported(int peer) const noexcept {
  const RankControl& them = control(peer);
  // acquire: pairs with the release in report().
  if (them.state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(RankState::kFailed)) return kOkOutcome;
  return {static_cast<Status>(them.failed_status), them.failed_peer};
}

std::string HostChannel::reason_of(int peer) const {
  if (reported(peer).ok()) return {};
  char reason[kReasonBytes];
  std::memcpy(reason, control(peer).failed_reason, kReasonBytes);
  return {reason, ::strnlen(reason, kReasonBytes)};
}

Outcome HostChannel::find_lost() const noexcept {
  for (int r = 0; r < ranks(); ++r) {
    if (r == index_) continue;
    // acquire: pairs with the release in report() and leave().
    const auto state = static_cast<RankState>(control(r).state.load(std::memory_order_acquire));
    if (state == RankState::kFailed) return {Status::kPeerFailed, r};
    if (state != RankState::kJoined || !died(r)) continue;
    // It may have said why, or left in good order, since.
    const auto last = static_cast<RankState>(control(r).state.load(std::memory_order_acquire));
    if (last == RankState::kFailed) return {Status::kPeerFailed, r};
    if (last == RankState::kJoined) return {Status::kPeerLost, r};
  }
  return kOkOutcome;
}

Outcome HostChannel::check(int peer) noexcept {
  if (aborted()) return {Status::kAborted, index_};
  bool anyone_here = false;
  for (int r = 0; r < ranks(); ++r) {
    if (r == index_) continue;
    // acquire: pairs with the release in report() and leave().
    const auto state = static_cast<RankState>(control(r).state.load(std::memory_order_acquire));
    if (state == RankState::kFailed) return {Status::kPeerFailed, r};
    if (state == RankState::kLeft && r == peer) return {Status::kPeerLeft, r};
    anyone_here = anyone_here || state == RankState::kJoined;
  }
  if (peer < 0 && !anyone_here && ranks() > 1) return {Status::kPeerLeft, peer};
  {
    const std::unique_lock lock(look_mutex_, std::try_to_lock);
    const std::int64_t now = now_ns();
    if (!lock.owns_lock() || now - looked_ns_ < kLookNs) return kOkOutcome;
    looked_ns_ = now;
    const Outcome end = look_at_processes(peer);
    if (!end.ok()) {
      looked_ns_ = 0;  // the next look finds it again
      return end;
    }
  }
  // Without the lock: it may call back for messages that it ends.
  if (hopeless_elsewhere_ && hopeless_elsewhere_()) return {Status::kPeerFailed, index_};
  return kOkOutcome;
}

// Under look_mutex_.
Outcome HostChannel::look_at_processes(int peer) noexcept {
  const bool pollable = std::any_of(life_.begin(), life_.end(), [](const pollfd& p) { return p.fd >= 0; });
  if (pollable && ::poll(life_.data(), life_.size(), 0) <= 0) return kOkOutcome;
  for (int r = 0; r < ranks(); ++r) {
    if (!died(r)) continue;
    // A rank that left in good order and then ended has not died on us.
    const auto state = static_cast<RankState>(control(r).state.load(std::memory_order_acquire));
    if (state == RankState::kJoined) return {Status::kPeerLost, r};
    if (state == RankState::kFailed) return {Status::kPeerFailed, r};
    if (r == peer) return {Status::kPeerLeft, r};
  }
  return kOkOutcome;
}

void HostChannel::abort() noexcept {
  // release: pairs with the acquire in aborted().
  aborted_.store(true, std::memory_order_release);
  for (int lane = 0; lane < kWaitLanes; ++lane) ring_own_doorbell(static_cast<WaitLane>(lane));
}

void HostChannel::leave() noexcept {
  if (waits_in_fork()) return;  // the rank is the parent's
  {
    const std::lock_guard lock(state_mutex_);
    // relaxed: only this rank writes its state, under the lock.
    if (control(index_).state.load(std::memory_order_relaxed) != static_cast<std::uint32_t>(RankState::kJoined)) return;
    // release: everything this rank published is visible to who sees that it left.
    control(index_).state.store(static_cast<std::uint32_t>(RankState::kLeft), std::memory_order_release);
  }
  for (int peer = 0; peer < ranks(); ++peer) {
    for (int lane = 0; lane < kWaitLanes; ++lane) ring_doorbell(peer, static_cast<WaitLane>(lane));
  }
}

void HostChannel::report(Outcome outcome, std::uint64_t sequence, std::string_view reason) noexcept {
  RankControl& me = control(index_);
  bool first = false;
  {
    // An abort by one thread and a call that fails on another: the note is one's or the other's, never of both.
    const std::lock_guard lock(state_mutex_);
    // relaxed: only this rank writes its state, under the lock.
    first = me.state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(RankState::kJoined);
    if (first) {
      me.failed_status = static_cast<std::int32_t>(outcome.status);
      me.failed_peer = outcome.peer;
      std::ranges::copy(first_of(reason, kReasonBytes), me.failed_reason);  // zero before
      // release: publishes the note; pairs with the acquire in reported(), reason_of() and check().
      me.state.store(static_cast<std::uint32_t>(RankState::kFailed), std::memory_order_release);
    }
  }
  if (sequence != 0) {
    // release: with the state and the note; pairs with the acquire in check_given_up().
    me.given_up.store(sequence, std::memory_order_release);
    // Before anything that this rank does to memory of the call; pairs with the fence in check_given_up().
    std::atomic_thread_fence(std::memory_order_seq_cst);
  }
  if (!first) return;
  for (int peer = 0; peer < ranks(); ++peer) {
    for (int lane = 0; lane < kWaitLanes; ++lane) ring_doorbell(peer, static_cast<WaitLane>(lane));
  }
}

Outcome HostChannel::check_given_up() const noexcept {
  // Everything read before is older than the words below; pairs with the fence in report().
  std::atomic_thread_fence(std::memory_order_acquire);
  for (int peer = 0; peer < ranks(); ++peer) {
    // acquire: makes the note visible; pairs with the release in report().
    const std::uint64_t sequence = control(peer).given_up.load(std::memory_order_acquire);
    if (peer != index_ && sequence != 0 && sequence <= sequence_) return {Status::kPeerFailed, peer};
  }
  return kOkOutcome;
}

}  // namespace tutti
