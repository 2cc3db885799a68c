// No test loses a wake-up: each test program asks for that at the end of each of its tests (lost_wakeups.cc), and the
// processes that tests fork at their own.
#pragma once

#include <cstdint>

namespace tutti::test {

// Of this process so far, and of those that it was forked from. Zero in a program without the library.
std::uint64_t lost_wakeups() noexcept;

// The test that runs loses wake-ups on purpose.
void may_lose_wakeups() noexcept;

inline constexpr int kLostWakeups = 90;  // the exit code of a forked process that lost some

// The exit code of a forked process that would end with `code`; `before`: what lost_wakeups() was at the fork.
inline int code_unless_lost(int code, std::uint64_t before) noexcept {
  return lost_wakeups() == before ? code : kLostWakeups;
}

}  // namespace tutti::test
