// Where the ranks of a group are that spans several hosts.
//
// Ownership: `here` is the communicator's. Thread rule: const once made.
#pragma once

#include <vector>

#include "channel/host_channel.h"

namespace tutti {

struct GroupHosts {
  std::vector<std::vector<int>> ranks;  // of each host, ascending; hosts by their lowest ranks
  std::vector<int> host_of;             // by rank: its place in `ranks`
  int host = 0;                         // this rank's
  int index = 0;                        // this rank's place among those of its host
  int fewest = 1;                       // ranks on any host
  HostChannel* here = nullptr;          // this host's shared memory; null for a rank that is alone on its host

  int hosts() const noexcept { return static_cast<int>(ranks.size()); }
  const std::vector<int>& ranks_here() const noexcept { return ranks[static_cast<std::size_t>(host)]; }
};

// `lowest_of`: by rank, the lowest rank of its host.
GroupHosts make_group_hosts(int rank, const std::vector<int>& lowest_of, HostChannel* here);

}  // namespace tutti
