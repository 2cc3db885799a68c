// What a communicator is formed of: who shares a host, and the transports between all ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "algorithm/plan/plan_files.h"
#include "algorithm/tuning/tuned.h"
#include "base/rank_map.h"
#include "channel/group_waker.h"
#include "channel/host_channel.h"
#include "communicator/networks.h"
#include "tutti/communicator.h"
#include "tutti/store.h"

namespace tutti {

struct FormedGroup {
  std::string id;
  RankMap ranks = RankMap::one_host(1);
  bool arenas_mapped = false;         // on every host with several ranks, each has mapped the arenas of all
  std::unique_ptr<HostChannel> host;  // null when alone on its host
  std::unique_ptr<GroupWaker> waker;
  std::vector<std::unique_ptr<Transport>> owned;
  std::vector<Transport*> transport_of_peer;  // null for this rank itself
  std::int64_t spin_ns = 0;                   // how long a wait for messages polls before it sleeps
  std::string differences;                    // of optional settings: compare_settings()
};

// Collective. Throws Error(kTimeout) naming the ranks that have not come, Error(kPeerLost), Error(kExhausted): on all
// ranks, naming one that has no descriptors. Whatever a group holds of the system it has when this returns, but for
// connections and threads.
// Compares what the choice of algorithms follows from: Error(kMismatch) on all ranks that names what differs.
FormedGroup form_group(Store& store, const std::string& id, int rank, int size, const CommunicatorOptions& options,
                       const PlanFiles& plans = {}, const Tuning& tuning = {},
                       std::span<const Network> networks = built_in_networks());

}  // namespace tutti
