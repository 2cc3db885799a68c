// Threads that work beside the program's calls: on groups of communicators that do not block.
//
// A process that exits in order, or closes the library, takes away what they stand on: CUDA's state, the library's
// code. So it tells them (process_ends()), waits two seconds for them, ends what is still under way by what they have
// left for that, and waits two more. What goes on even then is left behind. A forked child has none of them.
//
// Ownership: a thread holds what it works on, and gives it up before it counts as over; what `end` holds may stay for
// longer. Thread rule: any thread.
#pragma once

#include <functional>

namespace tutti::nccl {

// Runs `work`, whose errors are nobody's, in a thread of its own. `end`, if there is one, is called from another
// thread, at exit, when `work` has not ended by itself. False: there is no thread, and `work` has not run.
bool in_background(std::function<void()> work, std::function<void()> end = {}) noexcept;

// Whether what is under way should be given up.
bool process_ends() noexcept;

}  // namespace tutti::nccl
