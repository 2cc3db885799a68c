// Sleeps of a waker without a port.
#pragma once

#include <poll.h>

#include <cstdint>
#include <vector>

#include "channel/message_port.h"

namespace tutti::test {

// Sleeps if `may_sleep()` says so; whether a wake-up was lost, if `missed`: what was awaited is there afterwards.
template <class MaySleep>
bool sleep_for(PortWaker& waker, const std::vector<pollfd>& fds, std::int64_t timeout_ns, const MaySleep& may_sleep,
               bool missed = false) {
  class Sleeper final : public PortWaker::Sleeper {
   public:
    Sleeper(const MaySleep& may_sleep, bool missed) : may_sleep_(may_sleep), missed_(missed) {}
    bool may_sleep() noexcept override { return may_sleep_(); }
    bool has_missed() noexcept override { return missed_; }

   private:
    const MaySleep& may_sleep_;
    const bool missed_;
  };
  Sleeper sleeper(may_sleep, missed);
  return waker.sleep(fds, timeout_ns, sleeper);
}

}  // namespace tutti::test
