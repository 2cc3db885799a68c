#include "bootstrap/look.h"

#include <algorithm>
#include <thread>

#include "base/clock.h"
#include "base/interruption.h"

namespace tutti {

bool look_for(const std::function<bool()>& there, const std::function<void()>& ask, std::chrono::milliseconds timeout,
              std::chrono::milliseconds longest_pause) {
  using std::chrono::nanoseconds;
  constexpr nanoseconds kFirst = std::chrono::milliseconds(1);
  constexpr nanoseconds kSlice = std::chrono::milliseconds(kAskEveryMs);
  const nanoseconds longest = std::max<nanoseconds>(longest_pause, kFirst);
  Deadline deadline = Deadline::after(timeout);
  ask();
  for (nanoseconds pause = kFirst;; pause = std::min(2 * pause, longest)) {
    const bool last = deadline.expired();  // before the look: what comes in time is found
    if (there()) return true;
    if (last) return false;
    const nanoseconds left(std::max<std::int64_t>(0, deadline.remaining_ns()));
    for (nanoseconds rest = std::min(pause, left); rest.count() > 0; rest -= kSlice) {
      std::this_thread::sleep_for(std::min(rest, kSlice));
      ask();
    }
  }
}

}  // namespace tutti
