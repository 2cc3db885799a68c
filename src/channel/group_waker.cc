#include "channel/group_waker.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <new>
#include <utility>

#include "channel/berths.h"

namespace tutti {
namespace {

constexpr int kTickMs = 1;  // without bells, an eventfd or memory
constexpr std::int64_t kTickNs = kTickMs * 1'000'000;

}  // namespace

GroupWaker::GroupWaker(HostChannel* host, const RankMap& map, int rank) : host_(host), map_(map), rank_(rank) {
  polls_ = !map_.one_host() || host_ == nullptr;
  if (!polls_) return;
  Berths& berths = Berths::instance();
  berths.reserve(host_ != nullptr);
  // A rank that has no bell could not ring those of the others either, which would sleep on.
  if (host_ != nullptr) host_->ring_with(berths.ringer());
}

void GroupWaker::count_sleeper(int by) noexcept {
  const std::lock_guard lock(mutex_);
  const bool first = sleepers_ == 0;
  sleepers_ += by;
  const bool last = sleepers_ == 0;
  if (first && polls_) {
    nudge_fd_ = Berths::instance().take_event();
    if (host_ != nullptr) bell_ = Berths::instance().take_bell();
    if (host_ != nullptr) host_->sleep_at(bell_.get());
  }
  // Two threads of a rank may sleep at once; the flag that peers see stands for both.
  if (host_ != nullptr && first != last) host_->announce_sleep(WaitLane::kMessage, !last);
  // A nudge, or a ring, is for all who sleep: only the last one out takes it away.
  if (last && polls_) Berths::instance().give_back(std::move(nudge_fd_), std::move(bell_));
}

void GroupWaker::sleep_on_doorbell(std::int64_t timeout_ns, const std::function<bool()>& still_idle) noexcept {
  const std::uint32_t seen = host_->doorbell(WaitLane::kMessage);
  count_sleeper(1);
  if (still_idle()) host_->sleep(WaitLane::kMessage, seen, timeout_ns);
  count_sleeper(-1);
}

void GroupWaker::sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns,
                       const std::function<bool()>& still_idle) noexcept {
  if (!polls_) {
    sleep_on_doorbell(timeout_ns, still_idle);
    return;
  }
  std::vector<pollfd> all;
  try {
    all.reserve(fds.size() + 2);
  } catch (const std::bad_alloc&) {  // then it looks up now and then
    ::poll(nullptr, 0, kTickMs);
    return;
  }
  all = fds;
  count_sleeper(1);
  if (still_idle()) {
    // What it sleeps on stays its own as long as it counts as a sleeper.
    all.push_back({nudge_fd_.get(), POLLIN, 0});
    if (bell_ != nullptr) all.push_back({bell_->fd(), POLLIN, 0});
    const bool all_wake = nudge_fd_ && (host_ == nullptr || bell_ != nullptr);
    const std::int64_t slice = all_wake ? timeout_ns : std::min(timeout_ns, kTickNs);
    const timespec limit{static_cast<time_t>(slice / 1'000'000'000), static_cast<long>(slice % 1'000'000'000)};
    ::ppoll(all.data(), all.size(), &limit, nullptr);
  }
  count_sleeper(-1);
}

void GroupWaker::nudge() noexcept {
  // Whoever goes to sleep after this look asks still_idle() first and finds what we are nudging for.
  const std::lock_guard lock(mutex_);
  if (sleepers_ == 0) return;
  if (!polls_) return host_->ring_own_doorbell(WaitLane::kMessage);
  if (nudge_fd_) ::eventfd_write(nudge_fd_.get(), 1);
}

void GroupWaker::ring(int peer) noexcept {
  if (host_ != nullptr && is_here(peer)) host_->ring_doorbell(map_.place_of(peer), WaitLane::kMessage);
}

Outcome GroupWaker::check(int peer) noexcept {
  if (host_ == nullptr) return kOkOutcome;
  const int index = peer >= 0 && is_here(peer) ? map_.place_of(peer) : -1;
  Outcome outcome = host_->check(index);
  // "All have left" is said of this host only; ranks of others may still send.
  if (outcome.status == Status::kPeerLeft && index < 0 && !map_.one_host()) return kOkOutcome;
  if (outcome.peer >= 0) outcome.peer = map_.beside(rank_)[static_cast<std::size_t>(outcome.peer)];
  return outcome;
}

}  // namespace tutti
