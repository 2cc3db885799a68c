// One's turn at a mutex that another thread may hold for as long as a call or a proof takes: waited for no longer than
// a limit, and the handlers of signals run meanwhile (base/interruption.h).
//
// Thread rule: any thread.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <mutex>

#include "base/clock.h"
#include "base/interruption.h"

namespace tutti {

// To be waited for by the system's clock: waits by the steady one are not seen by g++ 12's thread sanitizer. A jump
// back of it holds up limits and handlers, while somebody has the mutex.
using TurnMutex = std::timed_mutex;
using TurnLock = std::unique_lock<TurnMutex>;

// Without the lock when `deadline` is over. Throws Error(kAborted) where a handler raises; `who()`, a text, was
// interrupted then.
template <class Who>
TurnLock take_turn(TurnMutex& mutex, Deadline& deadline, const Who& who) {
  TurnLock turn(mutex, std::try_to_lock);
  while (!turn) {
    const std::int64_t left = deadline.remaining_ns();
    if (left <= 0) break;
    using namespace std::chrono;
    const nanoseconds slice = std::min<nanoseconds>(nanoseconds(left), milliseconds(kAskEveryMs));
    if (turn.try_lock_until(system_clock::now() + duration_cast<system_clock::duration>(slice))) break;
    throw_if_interrupted(who());
  }
  return turn;
}

}  // namespace tutti
