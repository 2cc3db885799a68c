// Refuses groups and calls that cannot work, before anything is sent: one set of rules for every kind of communicator.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "tutti/call.h"
#include "tutti/stream_communicator.h"

namespace tutti {

// Before a communicator is made. Throws Error: kInvalidArgument if `rank` is not one of `size`, kUnsupported in a child
// of fork() whose parent used the library.
void check_group(int rank, int size);

// The time limit of a new group, or of one that exists. Throws Error(kInvalidArgument) unless it is positive.
void check_group_timeout(const std::string& group, std::chrono::milliseconds timeout);

// That of a call, where 0 means the group's, or of a wait. Throws Error(kInvalidArgument) if it is negative. `what` is
// the call's.
void check_call_timeout(std::string_view what, std::chrono::milliseconds timeout);
inline void check_call_timeout(Collective what, std::chrono::milliseconds timeout) {
  if (timeout.count() < 0) [[unlikely]]
    check_call_timeout(to_string(what), timeout);
}

// Throw Error(kInvalidArgument). `rank` of `size`.
void check_call(const Call& call, int rank, int size);
void check_message(const DeviceMessage& message, int rank, int size);

}  // namespace tutti
