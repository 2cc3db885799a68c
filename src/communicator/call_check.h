// Refuses calls that cannot work, before anything is sent: one set of rules for every kind of communicator.
#pragma once

#include "tutti/call.h"

namespace tutti {

// Throws Error(kInvalidArgument). `rank` of `size`.
void check_call(const Call& call, int rank, int size);

}  // namespace tutti
