// What threads of this process sleep on while they wait for messages of other hosts: an eventfd that wakes them, and a
// bell for the ranks of their host. A group borrows both for as long as it has sleepers, so the process has as many as
// groups have slept at once, and some of those go back to the system.
//
// Whoever rings a bell that has gone over to another group wakes that one for nothing, and misses nobody: the name of
// the bell is stored before the flag of the sleep there goes up (HostChannel::announce_sleep).
//
// Ownership: the process's; never destroyed. Thread rule: any thread. The mutex is a leaf.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "base/unique_fd.h"
#include "channel/bell.h"

namespace tutti {

class Berths {
 public:
  static Berths& instance();

  // There is an eventfd at least, and, `with_bell`, a bell to sleep at and one to ring others with, unless the system
  // has none. Throws Error(kExhausted).
  void reserve(bool with_bell);

  // Empty if there is none any more: then the sleeper looks up now and then.
  UniqueFd take_event() noexcept;
  std::unique_ptr<Bell> take_bell() noexcept;
  // Of nobody any more; what has rung is silenced.
  void give_back(UniqueFd event, std::unique_ptr<Bell> bell) noexcept;

  // Rings the bells of others; null where the system has none. Lives as long as the process.
  const Bell* ringer() const noexcept;

 private:
  mutable std::mutex mutex_;  // guards all
  std::vector<UniqueFd> events_;
  std::vector<std::unique_ptr<Bell>> bells_;
  std::unique_ptr<const Bell> ringer_;
  bool no_bells_ = false;  // the system has none
};

}  // namespace tutti
