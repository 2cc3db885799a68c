// Owns one descriptor of which a forked child keeps no copy; there the object is empty. The kernel ends a connection,
// and gives a port back, when the last copy goes: a child that lives on would hide the end of its parent.
//
// A handler of its own does that, not one of the process registry, whose being there disables Tutti in children: a
// process may make a group's id, which listens, and then fork its ranks.
//
// Thread rule: as UniqueFd. Lock: one of the process, a leaf. It is held while one is opened, moved or closed, and
// around fork().
#pragma once

#include "base/unique_fd.h"

namespace tutti {

class UnforkedFd {
 public:
  UnforkedFd() = default;
  UnforkedFd(UnforkedFd&& other) noexcept;
  UnforkedFd& operator=(UnforkedFd&& other) noexcept;
  UnforkedFd(const UnforkedFd&) = delete;
  UnforkedFd& operator=(const UnforkedFd&) = delete;
  ~UnforkedFd() { reset(); }

  // The UniqueFd that `open()` gives, and no fork comes in between: it must neither wait nor open another such one.
  // errno is as `open()` left it.
  template <class Open>
  static UnforkedFd opened_by(Open&& open) {
    UnforkedFd opened;
    {
      const Locked locked;
      opened.enter(open().release());
    }
    return opened;
  }

  int get() const noexcept { return fd_; }
  explicit operator bool() const noexcept { return fd_ >= 0; }
  void reset() noexcept;

 private:
  friend struct ForkOfFds;
  class Locked {
   public:
    Locked() noexcept;
    ~Locked();
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

   private:
    const bool took_;
  };

  // Under the lock.
  void enter(int fd) noexcept;
  int leave() noexcept;

  int fd_ = -1;
  // Of the process's list, where it has a descriptor.
  UnforkedFd* previous_ = nullptr;
  UnforkedFd* next_ = nullptr;
};

}  // namespace tutti
