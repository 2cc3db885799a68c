#include "channel/group_waker.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>

#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kSliceNs = 1'000'000;  // without bells

}  // namespace

GroupWaker::GroupWaker(HostChannel* host, std::vector<int> host_ranks, int rank, int size)
    : host_(host), host_ranks_(std::move(host_ranks)), index_of_rank_(static_cast<std::size_t>(size), -1) {
  for (std::size_t i = 0; i < host_ranks_.size(); ++i) {
    index_of_rank_[static_cast<std::size_t>(host_ranks_[i])] = static_cast<int>(i);
  }
  if (static_cast<int>(host_ranks_.size()) < size || host_ == nullptr) {
    nudge_fd_ = UniqueFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!nudge_fd_) {
      throw_system_error(ErrorKind::kExhausted, "eventfd for rank " + std::to_string(rank), errno);
    }
    if (host_ != nullptr) {
      bell_ = host_->open_bell();
      // A rank that has no bell cannot ring those of the others either, which would sleep on.
      if (bell_ == nullptr && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
        throw_system_error(ErrorKind::kExhausted, "socket for rank " + std::to_string(rank), errno);
      }
    }
  }
}

void GroupWaker::count_sleeper(int by) noexcept {
  const std::lock_guard lock(mutex_);
  const int before = sleepers_;
  sleepers_ += by;
  // Two threads of a rank may sleep at once; the flag that peers see stands for both.
  if (host_ != nullptr && ((before == 0) != (sleepers_ == 0))) {
    host_->announce_sleep(WaitLane::kMessage, sleepers_ != 0);
  }
  // A nudge, or a ring, is for all who sleep: only the last one out takes it away.
  if (nudge_fd_ && sleepers_ == 0) {
    std::uint64_t nudges = 0;
    [[maybe_unused]] const auto drained = ::read(nudge_fd_.get(), &nudges, sizeof(nudges));
    if (bell_ != nullptr) bell_->silence();
  }
}

void GroupWaker::sleep_on_doorbell(std::int64_t timeout_ns, const std::function<bool()>& still_idle) noexcept {
  const std::uint32_t seen = host_->doorbell(WaitLane::kMessage);
  count_sleeper(1);
  if (still_idle()) host_->sleep(WaitLane::kMessage, seen, timeout_ns);
  count_sleeper(-1);
}

void GroupWaker::sleep(const std::vector<pollfd>& fds, std::int64_t timeout_ns,
                       const std::function<bool()>& still_idle) noexcept {
  if (!nudge_fd_) {
    sleep_on_doorbell(timeout_ns, still_idle);
    return;
  }
  std::vector<pollfd> all = fds;
  all.push_back({nudge_fd_.get(), POLLIN, 0});
  if (bell_ != nullptr) all.push_back({bell_->fd(), POLLIN, 0});
  count_sleeper(1);
  if (still_idle()) {
    const std::int64_t slice = host_ != nullptr && bell_ == nullptr ? std::min(timeout_ns, kSliceNs) : timeout_ns;
    const timespec limit{static_cast<time_t>(slice / 1'000'000'000), static_cast<long>(slice % 1'000'000'000)};
    ::ppoll(all.data(), all.size(), &limit, nullptr);
  }
  count_sleeper(-1);
}

void GroupWaker::nudge() noexcept {
  {
    // Whoever goes to sleep after this look asks still_idle() first and finds what we are nudging for.
    const std::lock_guard lock(mutex_);
    if (sleepers_ == 0) return;
  }
  if (nudge_fd_) {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = ::write(nudge_fd_.get(), &one, sizeof(one));
  } else {
    host_->ring_own_doorbell(WaitLane::kMessage);
  }
}

void GroupWaker::ring(int peer) noexcept {
  const int index = index_of_rank_[static_cast<std::size_t>(peer)];
  if (host_ != nullptr && index >= 0) host_->ring_doorbell(index, WaitLane::kMessage);
}

Outcome GroupWaker::check(int peer) noexcept {
  if (host_ == nullptr) return kOkOutcome;
  const int index = peer >= 0 ? index_of_rank_[static_cast<std::size_t>(peer)] : -1;
  Outcome outcome = host_->check(index);
  // "All have left" is said of this host only; ranks of others may still send.
  const bool others = host_ranks_.size() < index_of_rank_.size();
  if (outcome.status == Status::kPeerLeft && index < 0 && others) return kOkOutcome;
  if (outcome.peer >= 0) outcome.peer = host_ranks_[static_cast<std::size_t>(outcome.peer)];
  return outcome;
}

}  // namespace tutti
