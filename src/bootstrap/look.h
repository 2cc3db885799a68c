// Looking again and again for what another rank puts into a store, with growing pauses.
//
// For stores whose own wait lets nobody be asked meanwhile: a program's signals, or whether the one who waits gives up.
//
// Thread rule: waits on the calling thread, and calls what it is given there.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>

#include "base/clock.h"
#include "tutti/error.h"

namespace tutti {

// The longest pause that is unnoticed beside a group's forming.
inline constexpr std::chrono::milliseconds kLongestPause{16};

// True once `there()` is, false when it was not even after `timeout`; it looks at least once. `ask()` is called before
// each look and at least every kAskEveryMs: the wait ends by what it throws, as by what `there` throws.
bool look_for(const std::function<bool()>& there, const std::function<void()>& ask, std::chrono::milliseconds timeout,
              std::chrono::milliseconds longest_pause = kLongestPause);

// `get(time)` with a part of the time again and again, until it gives something other than Error(kTimeout); `look()`,
// if there is one, between: the wait ends by what it throws.
template <class Get>
auto watched(const std::function<void()>& look, std::chrono::milliseconds timeout, const Get& get) {
  constexpr std::chrono::milliseconds kSlice(500);
  if (!look) return get(timeout);
  Deadline deadline = Deadline::after(timeout);
  for (;;) {
    const std::chrono::milliseconds left(std::max<std::int64_t>(1, deadline.remaining_ns() / 1'000'000));
    try {
      return get(std::min(left, kSlice));
    } catch (const Error& e) {
      if (e.kind() != ErrorKind::kTimeout || deadline.expired()) throw;
    }
    look();
  }
}

}  // namespace tutti
