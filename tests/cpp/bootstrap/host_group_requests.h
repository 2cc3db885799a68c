// Requests for the host group tests.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/host_group.h"

namespace tutti::test {

inline HostGroupRequest request_of(int rank, int size, std::string host_id = {}) {
  HostGroupRequest request;
  request.id = "world";
  request.rank = rank;
  request.size = size;
  request.secret = "a secret";
  request.host_id = std::move(host_id);
  request.segment_bytes = [](int ranks) { return static_cast<std::size_t>(ranks) * 4096; };
  request.timeout = std::chrono::seconds(20);
  return request;
}

inline std::vector<int> ranks_of(const HostGroup& group) {
  std::vector<int> ranks;
  for (const HostMember& m : group.members) ranks.push_back(m.rank);
  return ranks;
}

}  // namespace tutti::test
