#include "algorithm/group_hosts.h"

#include <algorithm>
#include <map>

namespace tutti {

GroupHosts make_group_hosts(int rank, const std::vector<int>& lowest_of, HostChannel* here) {
  std::map<int, std::vector<int>> by_lowest;
  for (std::size_t r = 0; r < lowest_of.size(); ++r) by_lowest[lowest_of[r]].push_back(static_cast<int>(r));
  GroupHosts made;
  made.host_of.resize(lowest_of.size());
  made.here = here;
  made.fewest = static_cast<int>(lowest_of.size());
  for (auto& [lowest, ranks] : by_lowest) {
    const int host = made.hosts();
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      made.host_of[static_cast<std::size_t>(ranks[i])] = host;
      if (ranks[i] != rank) continue;
      made.host = host;
      made.index = static_cast<int>(i);
    }
    made.fewest = std::min(made.fewest, static_cast<int>(ranks.size()));
    made.ranks.push_back(std::move(ranks));
  }
  return made;
}

}  // namespace tutti
