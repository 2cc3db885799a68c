// Which links lead from a node to another: the given route, else a path of least latency (then of fewest links). Among
// equal ones the pair of nodes chooses, so that the traffic of many pairs spreads over them as it does in a fabric that
// hashes flows.
//
// Thread rule: one thread; routes are found when first asked for. Cheapest if asked for source by source.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "plan/simulator/topology.h"

namespace tutti::plan {

struct Route {
  std::vector<std::int32_t> links;  // empty from a node to itself
  Picoseconds latency = 0;
};

class Routes {
 public:
  // `topology` must outlive it.
  explicit Routes(const Topology& topology);

  // Throws InvalidArgument if there is no path. The reference stays valid.
  const Route& between(std::int32_t from, std::int32_t to);

  // The least latency from a node to every node; -1 where none leads.
  std::vector<Picoseconds> latencies_from(std::int32_t from);

 private:
  void search(std::int32_t from);
  Route shortest(std::int32_t from, std::int32_t to);

  const Topology& topology_;
  std::vector<std::vector<std::int32_t>> out_;  // links by node
  std::vector<std::vector<std::int32_t>> in_;
  std::unordered_map<std::uint64_t, Route> known_;
  std::int32_t searched_ = -1;      // of which node `cost_` is
  std::vector<std::int64_t> cost_;  // latency · kHop + links
};

}  // namespace tutti::plan
