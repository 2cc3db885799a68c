// Refuses groups and calls that cannot work, before anything is sent: one set of rules for every kind of communicator.
#pragma once

#include "tutti/call.h"

namespace tutti {

// Before a communicator is made. Throws Error: kInvalidArgument if `rank` is not one of `size`, kUnsupported in a child
// of fork() whose parent used the library.
void check_group(int rank, int size);

// Throws Error(kInvalidArgument). `rank` of `size`.
void check_call(const Call& call, int rank, int size);

}  // namespace tutti
