// Looking again and again for what another rank puts into a store, with growing pauses.
//
// For stores whose own wait lets nobody be asked meanwhile: a program's signals, or whether the one who waits gives up.
//
// Thread rule: waits on the calling thread, and calls what it is given there.
#pragma once

#include <chrono>
#include <functional>

namespace tutti {

// The longest pause that is unnoticed beside a group's forming.
inline constexpr std::chrono::milliseconds kLongestPause{16};

// True once `there()` is, false when it was not even after `timeout`; it looks at least once. `ask()` is called before
// each look and at least every kAskEveryMs: the wait ends by what it throws, as by what `there` throws.
bool look_for(const std::function<bool()>& there, const std::function<void()>& ask, std::chrono::milliseconds timeout,
              std::chrono::milliseconds longest_pause = kLongestPause);

}  // namespace tutti
