#include "channel/poll_waker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "tutti/error.h"

namespace tutti {

PollWaker::PollWaker(std::function<Outcome(int)> check, std::function<void(int)> ring)
    : check_(std::move(check)), ring_(std::move(ring)), event_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw_system_error(ErrorKind::kExhausted, "eventfd", errno);
}

bool PollWaker::sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept {
  std::unique_lock lock(mutex_);
  const std::uint64_t seen = wakes_;
  lock.unlock();
  if (!sleeper.may_sleep()) return false;
  constexpr std::int64_t kMostMs = 1'000'000;
  const std::int64_t ms = std::min(kMostMs, (std::max<std::int64_t>(timeout_ns, 0) + 999'999) / 1'000'000);
  lock.lock();
  if (wakes_ != seen) return false;
  if (polling_) {
    changed_.wait_for(lock, std::chrono::milliseconds(ms), [&] { return wakes_ != seen; });
    return false;
  }
  polling_ = true;
  lock.unlock();
  std::vector<pollfd> all = fds;
  all.push_back({event_.get(), POLLIN, 0});
  ::poll(all.data(), all.size(), static_cast<int>(ms));
  std::uint64_t nudges = 0;
  [[maybe_unused]] const ssize_t n = ::read(event_.get(), &nudges, sizeof nudges);
  lock.lock();
  polling_ = false;
  ++wakes_;
  changed_.notify_all();
  return false;
}

void PollWaker::nudge() noexcept {
  {
    const std::lock_guard lock(mutex_);
    ++wakes_;
    changed_.notify_all();
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(event_.get(), &one, sizeof one);
}

void PollWaker::ring(int peer) noexcept {
  if (ring_) ring_(peer);
}

Outcome PollWaker::check(int peer) noexcept { return check_ ? check_(peer) : kOkOutcome; }

}  // namespace tutti
