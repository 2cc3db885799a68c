// How a communicator forms: who shares a host, and the transports between all ranks.
#pragma once

#include <memory>
#include <vector>

#include "base/rank_map.h"
#include "channel/group_waker.h"
#include "channel/host_channel.h"
#include "transport/link.h"
#include "tutti/communicator.h"
#include "tutti/store.h"

namespace tutti {

struct Topology {
  std::string id;
  RankMap ranks = RankMap::one_host(1);
  bool arenas_mapped = false;         // on every host with several ranks, each has mapped the arenas of all
  std::unique_ptr<HostChannel> host;  // null when alone on its host
  std::unique_ptr<GroupWaker> waker;
  std::vector<std::unique_ptr<Transport>> owned;
  std::vector<Transport*> transport_of_peer;  // null for this rank itself
  std::int64_t spin_ns = 0;                   // how long a wait for messages polls before it sleeps
};

// Collective. Throws Error(kTimeout) naming the ranks that have not come, Error(kPeerLost), Error(kExhausted): on all
// ranks, naming one that has no descriptors. Whatever a group holds of the system it has when this returns, but for
// connections and threads.
// `word` is what this rank tells the ranks of its host (HostChannel::word_of). `plans`: identity of those
// that the choice of algorithms begins with; with other settings it is compared: Error(kMismatch) on all ranks that
// names what differs.
Topology form_topology(Store& store, const std::string& id, int rank, int size, const CommunicatorOptions& options,
                       std::uint64_t word = 0, std::uint32_t plans = 0);

}  // namespace tutti
