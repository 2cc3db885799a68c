// Where the ranks of a group lie: which of them share a host, and so memory. The same on all ranks.
//
// A host is a number here, from 0 in the order of the hosts' lowest ranks; a rank's place is its number among those of
// its host, which is also its index in the host's channel. Thread rule: const once made.
#pragma once

#include <compare>
#include <vector>

namespace tutti {

class RankMap {
 public:
  // By rank: any number that ranks of one host have in common, and those of different hosts have not.
  explicit RankMap(const std::vector<int>& marks);
  static RankMap one_host(int ranks) { return RankMap(std::vector<int>(static_cast<std::size_t>(ranks), 0)); }

  int ranks() const noexcept { return static_cast<int>(hosts_of_.size()); }
  int hosts() const noexcept { return static_cast<int>(on_.size()); }
  bool one_host() const noexcept { return hosts() <= 1; }

  int host_of(int rank) const noexcept { return hosts_of_[static_cast<std::size_t>(rank)]; }
  bool together(int a, int b) const noexcept { return host_of(a) == host_of(b); }
  int place_of(int rank) const noexcept { return places_[static_cast<std::size_t>(rank)]; }

  // Ascending: by place.
  const std::vector<int>& on(int host) const noexcept { return on_[static_cast<std::size_t>(host)]; }
  // Those of the host of `rank`, itself included.
  const std::vector<int>& beside(int rank) const noexcept { return on(host_of(rank)); }
  // Ranks on the host that has the fewest.
  int fewest() const noexcept;

  auto operator<=>(const RankMap&) const = default;

 private:
  std::vector<int> hosts_of_, places_;  // by rank
  std::vector<std::vector<int>> on_;    // by host
};

}  // namespace tutti
