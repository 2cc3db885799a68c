// How many thread blocks of a plan a GPU holds at once. They wait for each other, so one that finds no room before
// others have ended would hold them up for good. Ranks that share a GPU wait for each other too, so each has its part
// of it.
//
// Thread rule: pure functions.
#pragma once

#include <string>

namespace tutti::cuda {

struct PlanRoom {
  int blocks = 1;   // of a kernel
  std::string why;  // "the GPU has room for 66 of them: ..."
};

// `each`: blocks of `threads` threads that one of `processors` multiprocessors holds. `sharers`: most ranks on one GPU.
// `wanted`: most that a rank of the group wants.
PlanRoom room_of(int processors, int each, int threads, int sharers, int wanted);

}  // namespace tutti::cuda
