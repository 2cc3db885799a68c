#include "base/rank_map.h"

#include <algorithm>
#include <map>

namespace tutti {

RankMap::RankMap(const std::vector<int>& marks) {
  std::map<int, int> host_of_mark;
  for (const int mark : marks) {
    const int rank = ranks();
    const int host = host_of_mark.try_emplace(mark, hosts()).first->second;
    if (host == hosts()) on_.emplace_back();
    std::vector<int>& here = on_[static_cast<std::size_t>(host)];
    hosts_of_.push_back(host);
    places_.push_back(static_cast<int>(here.size()));
    here.push_back(rank);
  }
}

int RankMap::fewest() const noexcept {
  std::size_t fewest = hosts_of_.size();
  for (const auto& ranks : on_) fewest = std::min(fewest, ranks.size());
  return static_cast<int>(fewest);
}

}  // namespace tutti
