// One pipe a fork; its end of file is the child's end.
#include "device/cpu/forked_children.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <new>

namespace tutti {
namespace {

// A pipe nobody writes to becomes "readable" only through end of file.
bool ended(const UniqueFd& read_end) noexcept {
  if (!read_end) return false;
  pollfd entry{read_end.get(), POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & (POLLHUP | POLLIN)) != 0;
}

}  // namespace

void ForkedChildren::forget_ended_locked() noexcept {
  std::erase_if(children_, [](const Child& child) { return ended(child.end_of_life); });
}

bool ForkedChildren::may_live(std::uint32_t after, std::uint32_t up_to) noexcept {
  const std::lock_guard lock(mutex_);
  return lost_child_ || std::any_of(children_.begin(), children_.end(),
                                    [=](const Child& child) { return child.number > after && child.number <= up_to; });
}

void ForkedChildren::refresh() noexcept {
  const std::lock_guard lock(mutex_);
  forget_ended_locked();
}

void ForkedChildren::before_fork() noexcept {
  mutex_.lock();
  forget_ended_locked();
  int ends[2];
#if defined(__linux__)
  const bool made = ::pipe2(ends, O_CLOEXEC) == 0;
#else
  const bool made = ::pipe(ends) == 0;
  if (made) {
    ::fcntl(ends[0], F_SETFD, FD_CLOEXEC);
    ::fcntl(ends[1], F_SETFD, FD_CLOEXEC);
  }
#endif
  UniqueFd read_end(made ? ends[0] : -1);
  new_write_end_ = UniqueFd(made ? ends[1] : -1);
  try {
    children_.push_back({forks() + 1, std::move(read_end)});
  } catch (const std::bad_alloc&) {
    lost_child_ = true;
  }
}

void ForkedChildren::after_fork_in_parent() noexcept {
  forks_.store(forks() + 1, std::memory_order_relaxed);  // relaxed: see forks()
  // From here on the child alone holds the write end; if the fork failed, nobody does and it counts as ended.
  new_write_end_.reset();
  mutex_.unlock();
}

void ForkedChildren::after_fork_in_child() noexcept {
  children_.clear();
  lost_child_ = false;
  own_life_ = std::move(new_write_end_);
  mutex_.unlock();
}

}  // namespace tutti
