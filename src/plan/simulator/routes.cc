// Dijkstra from one node at a time.
#include "plan/simulator/routes.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::int64_t kFar = std::numeric_limits<std::int64_t>::max();
constexpr double kMostLatency = 4e13;  // keeps a path of thousands of links times kHop within 63 bits
constexpr std::int64_t kHop = 1 << 12;

std::int64_t cost_of(const Link& link) {
  return std::min(link.latency, static_cast<Picoseconds>(kMostLatency)) * kHop + 1;
}

}  // namespace

Routes::Routes(const Topology& topology) : topology_(topology) {
  out_.resize(topology.nodes.size());
  in_.resize(topology.nodes.size());
  for (std::size_t i = 0; i < topology.links.size(); ++i) {
    out_[topology.links[i].from].push_back(static_cast<std::int32_t>(i));
    in_[topology.links[i].to].push_back(static_cast<std::int32_t>(i));
  }
  for (const GivenRoute& given : topology.routes) {
    Route route{given.links, 0};
    for (const std::int32_t link : given.links) {
      route.latency += topology.links[link].latency;
      if (route.latency > kLongest) throw_too_long();
    }
    known_[pair_key(given.from, given.to)] = std::move(route);
  }
}

void Routes::search(std::int32_t from) {
  if (searched_ == from) return;
  searched_ = from;
  cost_.assign(topology_.nodes.size(), kFar);
  using Entry = std::pair<std::int64_t, std::int32_t>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open;
  cost_[from] = 0;
  open.emplace(0, from);
  while (!open.empty()) {
    const auto [cost, node] = open.top();
    open.pop();
    if (cost > cost_[node]) continue;
    for (const std::int32_t id : out_[node]) {
      const Link& link = topology_.links[id];
      const std::int64_t step = cost_of(link);
      if (step >= kFar - cost) throw_too_long();
      const std::int64_t next = cost + step;
      if (next >= cost_[link.to]) continue;
      cost_[link.to] = next;
      open.emplace(next, link.to);
    }
  }
}

Route Routes::shortest(std::int32_t from, std::int32_t to) {
  search(from);
  if (cost_[to] == kFar) {
    throw_error(ErrorKind::kInvalidArgument,
                "topology: no path leads from \"" + topology_.nodes[from] + "\" to \"" + topology_.nodes[to] + "\"");
  }
  Route route;
  for (std::int32_t node = to; node != from;) {
    std::vector<std::int32_t> equal;
    for (const std::int32_t id : in_[node]) {
      const Link& link = topology_.links[id];
      if (cost_[link.from] != kFar && cost_[link.from] + cost_of(link) == cost_[node]) equal.push_back(id);
    }
    const std::int32_t id = equal[(static_cast<std::size_t>(from) + static_cast<std::size_t>(to)) % equal.size()];
    route.links.push_back(id);
    route.latency += topology_.links[id].latency;
    node = topology_.links[id].from;
  }
  std::reverse(route.links.begin(), route.links.end());
  return route;
}

const Route& Routes::between(std::int32_t from, std::int32_t to) {
  const auto found = known_.find(pair_key(from, to));
  if (found != known_.end()) return found->second;
  return known_.emplace(pair_key(from, to), shortest(from, to)).first->second;
}

std::vector<Picoseconds> Routes::latencies_from(std::int32_t from) {
  search(from);
  std::vector<Picoseconds> out;
  for (const std::int64_t cost : cost_) out.push_back(cost == kFar ? -1 : cost / kHop);
  return out;
}

}  // namespace tutti::plan
