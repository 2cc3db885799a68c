// Latency and bandwidth that a collective needs at least.
#include "plan/simulator/bounds.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "base/collective_traits.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

// The ranks of a set of nodes, as far as the bytes over its boundary depend on them.
struct Side {
  double ranks = 0;
  bool root = false;
};

// The bytes that must come to `side` of `all` ranks, with B or b bytes a rank block.
double incoming(const Plan& plan, Side side, double block) {
  const double all = static_cast<double>(plan.ranks.size());
  const double others = all - side.ranks;
  if (side.ranks == 0 || others == 0) return 0;
  switch (plan.collective) {
    case PlanCollective::kAllReduce:
      return block;
    case PlanCollective::kAllGather:
      return others * block;
    case PlanCollective::kReduceScatter:
      return side.ranks * block;
    case PlanCollective::kAllToAll:
      return others * side.ranks * block;
    case PlanCollective::kBroadcast:
      return side.root ? 0 : block;
    case PlanCollective::kReduce:
      return side.root ? block : 0;
    case PlanCollective::kGather:
      return side.root ? others * block : 0;
    case PlanCollective::kScatter:
      return side.root ? 0 : side.ranks * block;
    case PlanCollective::kSendRecv:
    case PlanCollective::kTest:
    case PlanCollective::kCustom:
      break;
  }
  return 0;
}

// Whether rank `to` needs data of rank `from`.
bool needs(const Plan& plan, std::int32_t from, std::int32_t to) {
  const std::optional<Collective> call = rules_of(plan.collective).call;
  if (!call) return false;
  const CollectiveTraits& traits = traits_of(*call);
  return (!traits.root_reads || from == plan.root) && (!traits.root_writes || to == plan.root);
}

Picoseconds latency_bound(const Plan& plan, const Topology& topology, Routes& routes) {
  const auto count = static_cast<std::int32_t>(plan.ranks.size());
  Picoseconds most = 0;
  for (std::int32_t from = 0; from < count; ++from) {
    std::vector<Picoseconds> latencies;
    for (std::int32_t to = 0; to < count; ++to) {
      if (!needs(plan, from, to)) continue;
      if (latencies.empty()) latencies = routes.latencies_from(topology.ranks[from]);
      most = std::max(most, latencies[topology.ranks[to]]);
    }
  }
  return most;
}

// The time that the boundary of `nodes` needs, in picoseconds.
double boundary_bound(const Plan& plan, const Topology& topology, const std::vector<std::int32_t>& nodes,
                      double block) {
  std::vector<bool> inside(topology.nodes.size());
  for (const std::int32_t node : nodes) inside[node] = true;
  Side in;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    if (!inside[topology.ranks[r]]) continue;
    ++in.ranks;
    in.root = in.root || static_cast<std::int32_t>(r) == plan.root;
  }
  const Side out{static_cast<double>(plan.ranks.size()) - in.ranks, !in.root};
  double into = 0;
  double from = 0;
  for (const Link& link : topology.links) {
    if (inside[link.from] && !inside[link.to]) from += link.bandwidth;
    if (!inside[link.from] && inside[link.to]) into += link.bandwidth;
  }
  const double entering = into > 0 ? incoming(plan, in, block) / into : 0;
  const double leaving = from > 0 ? incoming(plan, out, block) / from : 0;
  return std::max(entering, leaving);
}

// Every partial sum has to be received by somebody, and so has every total.
double total_bound(const Plan& plan, const Topology& topology, const std::vector<std::int32_t>& nodes, double block) {
  if (plan.collective != PlanCollective::kAllReduce || topology.multicast || nodes.size() < 2) return 0;
  std::vector<bool> holds_rank(topology.nodes.size());
  for (const std::int32_t node : nodes) holds_rank[node] = true;
  double into = 0;
  for (const Link& link : topology.links) into += holds_rank[link.to] ? link.bandwidth : 0;
  return into > 0 ? 2 * static_cast<double>(nodes.size() - 1) * block / into : 0;
}

}  // namespace

Bounds bounds_of(const Plan& plan, const Topology& topology, Routes& routes, std::int64_t block_bytes) {
  const auto block = static_cast<double>(block_bytes);
  std::vector<std::int32_t> nodes(topology.ranks.begin(),
                                  topology.ranks.begin() + static_cast<std::ptrdiff_t>(plan.ranks.size()));
  std::sort(nodes.begin(), nodes.end());
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  double most = total_bound(plan, topology, nodes, block);
  for (const std::int32_t node : nodes) most = std::max(most, boundary_bound(plan, topology, {node}, block));
  for (const auto& group : topology.groups) most = std::max(most, boundary_bound(plan, topology, group, block));
  const Picoseconds latency = block_bytes > 0 ? latency_bound(plan, topology, routes) : 0;  // else nothing is needed
  return {static_cast<double>(latency) / kPicosecondsPerUs, most / kPicosecondsPerUs};
}

double counted_bytes(const Plan& plan, std::int64_t block_bytes) {
  const bool by_rank = plan.collective == PlanCollective::kAllGather ||
                       plan.collective == PlanCollective::kReduceScatter ||
                       plan.collective == PlanCollective::kAllToAll || plan.collective == PlanCollective::kGather ||
                       plan.collective == PlanCollective::kScatter;
  return static_cast<double>(block_bytes) * (by_rank ? static_cast<double>(plan.ranks.size()) : 1.0);
}

}  // namespace tutti::plan
