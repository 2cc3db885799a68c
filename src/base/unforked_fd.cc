#include "base/unforked_fd.h"

#include <poll.h>
#include <pthread.h>

#include <cerrno>
#include <mutex>
#include <utility>

namespace tutti {

// Handlers of fork(), from before the first descriptor: so no fork sees the lock before they know of it.
struct ForkOfFds {
  // By trying: POSIX lets a thread try a lock that it holds itself, as one does whose handler of a signal forks. What
  // is done under it takes microseconds; where it is not to be had, the child keeps its copies, and has no list any
  // more: nobody there would give the lock back, or finish what another thread has begun.
  static void before() noexcept {
    constexpr int kMostTries = 200;  // a millisecond apart
    held = mutex.try_lock();
    for (int i = 0; i < kMostTries && !held; ++i) {
      ::poll(nullptr, 0, 1);
      held = mutex.try_lock();
    }
  }
  static void in_parent() noexcept {
    if (std::exchange(held, false)) mutex.unlock();
  }
  // Nothing but close(): no shutdown(), which the parent's connection would feel.
  static void in_child() noexcept {
    if (!held) {
      left = true;
      return;
    }
    while (first != nullptr) ::close(first->leave());
    in_parent();
  }

  static constinit std::mutex mutex;        // guards the list
  static constinit UnforkedFd* first;       // of the list
  static constinit thread_local bool held;  // by this thread's fork
  static constinit bool left;               // written in a child, before it has a second thread
  static const int registered;
};
constinit std::mutex ForkOfFds::mutex;
constinit UnforkedFd* ForkOfFds::first = nullptr;
constinit thread_local bool ForkOfFds::held = false;
constinit bool ForkOfFds::left = false;
const int ForkOfFds::registered = ::pthread_atfork(before, in_parent, in_child);  // without memory: as it was

UnforkedFd::Locked::Locked() noexcept : took_(!ForkOfFds::left) {
  if (took_) ForkOfFds::mutex.lock();
}

UnforkedFd::Locked::~Locked() {
  if (!took_) return;
  const int error = errno;
  ForkOfFds::mutex.unlock();
  errno = error;
}

void UnforkedFd::enter(int fd) noexcept {
  fd_ = fd;
  if (fd < 0 || ForkOfFds::left) return;
  next_ = std::exchange(ForkOfFds::first, this);
  if (next_ != nullptr) next_->previous_ = this;
}

int UnforkedFd::leave() noexcept {
  if (fd_ < 0 || ForkOfFds::left) return std::exchange(fd_, -1);
  (previous_ != nullptr ? previous_->next_ : ForkOfFds::first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  previous_ = next_ = nullptr;
  return std::exchange(fd_, -1);
}

UnforkedFd::UnforkedFd(UnforkedFd&& other) noexcept {
  const Locked locked;
  enter(other.leave());
}

UnforkedFd& UnforkedFd::operator=(UnforkedFd&& other) noexcept {
  if (this == &other) return *this;
  reset();
  const Locked locked;
  enter(other.leave());
  return *this;
}

void UnforkedFd::reset() noexcept {
  if (fd_ < 0) return;
  const Locked locked;
  const int fd = leave();
  ::close(fd);
}

}  // namespace tutti
