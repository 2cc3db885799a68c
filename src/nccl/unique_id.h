// Where the ranks of a communicator meet: an address and a secret in the part of NCCL's unique id that NCCL leaves
// zero.
//
// NCCL's own part is a number, a socket address and a count, 40 of the 128 bytes; it clears the rest and carries all of
// it to the other ranks. The socket address there is one that all ranks reach, so the meeting place listens at the
// same.
//
// Thread rule: values and functions without state.
#pragma once

#include <optional>
#include <string>

#include "bootstrap/meeting_place.h"
#include "device/nccl/abi.h"

namespace tutti::nccl {

// The address that NCCL listens at, as the id says; empty where the id has none, or something lies in the part that
// should be free.
std::string free_address(const ncclUniqueId& id);

// `place.address` is what free_address() has said.
void write_place(ncclUniqueId& id, const MeetingPlace& place);
std::optional<MeetingPlace> read_place(const ncclUniqueId& id);

}  // namespace tutti::nccl
