// Where a rank stands in its group: among which ranks, and what memory it shares with those of its host.
//
// Ownership: `host` is the communicator's. Thread rule: const once made.
#pragma once

#include <vector>

#include "base/outcome.h"
#include "base/rank_map.h"
#include "channel/host_channel.h"

namespace tutti {

struct GroupPlace {
  int rank = 0;
  RankMap ranks = RankMap::one_host(1);
  HostChannel* host = nullptr;  // null for a rank that is alone on its host

  // This rank's among those of its host.
  int place() const noexcept { return ranks.place_of(rank); }
  // The ranks of this host, by place.
  const std::vector<int>& here() const noexcept { return ranks.beside(rank); }
  int rank_at(int place) const noexcept { return here()[static_cast<std::size_t>(place)]; }
  // Of a rank of this host; -1 for one of another host, or for what is no rank: a peer may have said it.
  int place_here(int other) const noexcept {
    return other >= 0 && other < ranks.ranks() && ranks.together(rank, other) ? ranks.place_of(other) : -1;
  }
  // An outcome that names a place, as one that names a rank.
  Outcome of_ranks(Outcome outcome) const noexcept {
    if (outcome.peer >= 0) outcome.peer = rank_at(outcome.peer);
    return outcome;
  }
};

}  // namespace tutti
