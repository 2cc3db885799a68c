// Kills its process after so many messages: in a program with counted_steps.cc.
//
// A message is what a call of the C library sends or takes, or a connection that it makes or accepts: this program's
// come before the C library's own, and kill it by themselves.
//
// Thread rule: any thread.
#pragma once

namespace tutti::test {

// Below 0: no more.
void die_after(int steps) noexcept;

}  // namespace tutti::test
