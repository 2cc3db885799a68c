// Where the ranks of a communicator lie, as far as its plans need to know.
//
// Thread rule: a value.
#pragma once

#include <algorithm>
#include <numeric>
#include <vector>

#include "channel/host_channel.h"

namespace tutti {

struct PlanWorld {
  int rank = 0;
  std::vector<int> host_of;     // by rank: the lowest rank of its host
  std::vector<int> here;        // the ranks of this host, ascending: by index in `host`
  HostChannel* host = nullptr;  // null for a rank that is alone on its host

  static PlanWorld of_one_host(HostChannel& host) {
    PlanWorld world{host.index(), std::vector<int>(static_cast<std::size_t>(host.ranks()), 0), {}, &host};
    world.here.resize(world.host_of.size());
    std::iota(world.here.begin(), world.here.end(), 0);
    return world;
  }

  bool one_host() const noexcept { return here.size() == host_of.size(); }
  // Of a rank in `host`; -1 for one of another host, or for no rank.
  int index_of(int other) const noexcept {
    const auto found = std::find(here.begin(), here.end(), other);
    return found != here.end() ? static_cast<int>(found - here.begin()) : -1;
  }
};

}  // namespace tutti
