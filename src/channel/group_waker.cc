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
constexpr std::int64_t kFirstNs = 1'000'000;  // of a sleep: see sleep_whole()

timespec time_of(std::int64_t ns) noexcept {
  return {static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
}

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

// Sleeps by `nap(ns)`, which says whether something has ended it. `rung()`: whether anybody has woken since the sleep
// was announced. As in HostChannel::wait_slowly(), a store may be missed at first by sleeper and publisher both where
// publishers do not fence: so the first nap is short, the flag stays up, and what that one misses is no lost wake-up.
template <class Nap, class Rung>
bool GroupWaker::sleep_whole(std::int64_t timeout_ns, Sleeper& sleeper, const Nap& nap, const Rung& rung) noexcept {
  if (host_ != nullptr && !host_->publishers_fence()) {
    if (nap(std::min(timeout_ns, kFirstNs)) || timeout_ns <= kFirstNs || !sleeper.may_sleep()) return false;
    timeout_ns -= kFirstNs;
  }
  // The order matters: who has brought what is found, and publishes no more, has rung.
  return !nap(timeout_ns) && sleeper.has_missed() && (host_ == nullptr || host_->nobody_publishes()) && !rung();
}

bool GroupWaker::sleep_on_doorbell(std::int64_t timeout_ns, Sleeper& sleeper) noexcept {
  const std::uint32_t seen = host_->doorbell(WaitLane::kMessage);
  const auto rung = [&] { return host_->doorbell(WaitLane::kMessage) != seen; };
  const auto nap = [&](std::int64_t ns) {
    host_->sleep(WaitLane::kMessage, seen, ns);
    return rung();
  };
  count_sleeper(1);
  const bool lost = sleeper.may_sleep() && sleep_whole(timeout_ns, sleeper, nap, rung);
  count_sleeper(-1);
  return lost;
}

// What it sleeps on stays its own as long as it counts as a sleeper.
bool GroupWaker::sleep_in_poll(std::vector<pollfd>& all, std::int64_t timeout_ns, Sleeper& sleeper) noexcept {
  const std::size_t sockets = all.size();
  all.push_back({nudge_fd_.get(), POLLIN, 0});
  if (bell_ != nullptr) all.push_back({bell_->fd(), POLLIN, 0});
  const auto nap = [&](std::int64_t ns) {
    const timespec limit = time_of(ns);
    return ::ppoll(all.data(), all.size(), &limit, nullptr) != 0;
  };
  const auto rung = [&] { return ::poll(all.data() + sockets, all.size() - sockets, 0) != 0; };
  if (nudge_fd_ && (host_ == nullptr || bell_ != nullptr)) return sleep_whole(timeout_ns, sleeper, nap, rung);
  nap(std::min(timeout_ns, kTickNs));
  return false;
}

bool GroupWaker::sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept {
  if (!polls_) return sleep_on_doorbell(timeout_ns, sleeper);
  std::vector<pollfd> all;
  try {
    all.reserve(fds.size() + 2);
  } catch (const std::bad_alloc&) {  // then it looks up now and then
    ::poll(nullptr, 0, kTickMs);
    return false;
  }
  all = fds;
  count_sleeper(1);
  const bool lost = sleeper.may_sleep() && sleep_in_poll(all, timeout_ns, sleeper);
  count_sleeper(-1);
  return lost;
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

void GroupWaker::begin_publishing() noexcept {
  if (host_ != nullptr) host_->begin_publishing(WaitLane::kMessage);
}

void GroupWaker::end_publishing() noexcept {
  if (host_ != nullptr) host_->end_publishing(WaitLane::kMessage);
}

void GroupWaker::look_elsewhere(const std::function<Outcome()>& look) {
  look_elsewhere_ = look;
  if (host_ != nullptr) host_->look_elsewhere([look] { return !look().ok(); });
}

Outcome GroupWaker::check(int peer) noexcept {
  if (host_ == nullptr) {
    const std::int64_t now = now_ns();
    if (!look_elsewhere_ || now - looked_ns_.load(std::memory_order_relaxed) < kLookNs) return kOkOutcome;
    looked_ns_.store(now, std::memory_order_relaxed);
    return look_elsewhere_();
  }
  const int index = peer >= 0 && is_here(peer) ? map_.place_of(peer) : -1;
  Outcome outcome = host_->check(index);
  if (outcome.status == Status::kPeerFailed && outcome.peer == host_->index()) return look_elsewhere_();
  // "All have left" is said of this host only; ranks of others may still send.
  if (outcome.status == Status::kPeerLeft && index < 0 && !map_.one_host()) return kOkOutcome;
  if (outcome.peer >= 0) outcome.peer = map_.beside(rank_)[static_cast<std::size_t>(outcome.peer)];
  return outcome;
}

}  // namespace tutti
