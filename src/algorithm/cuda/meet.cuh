// All ranks meet: what comes before it on every rank's stream is complete, and seen, before what comes after it on any.
// One block. A kernel of its own where work that is no kernel, copies by copy engines, stands before or after it.
//
// The order of a stream makes what precedes a kernel visible to it; its release passes that on to the peers (bulk.cuh).
#pragma once

#include "algorithm/cuda/bulk.cuh"

namespace tutti::cuda {

struct MeetArgs {
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
};

template <class Team>
TUTTI_DEVICE void meet(const Team& team, const DeviceWorld& world, const MeetArgs& args) {
  BlockCall<Team> call(team, world, args.fingerprint, args.ticket);
  if (!call.enter()) return;
  call.check_headers();
  const BulkRing<Team> ring(team, world, call);
  team.sync();
  ring.signal(0, 0);
  ring.wait(0, 0);
  ring.finish(1);
  call.leave();
}

}  // namespace tutti::cuda
