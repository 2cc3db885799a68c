// Shares links among flows.
#include "plan/simulator/network.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace tutti::plan {

Network::Network(const std::vector<double>& bandwidths)
    : bandwidths_(bandwidths), bytes_(bandwidths.size()), on_(bandwidths.size()), is_touched_(bandwidths.size()) {}

void Network::touch(std::int32_t link) {
  if (is_touched_[link]) return;
  is_touched_[link] = true;
  touched_.push_back(link);
}

void Network::start(const std::vector<std::int32_t>& links, double bytes, double efficiency, double most,
                    std::uint64_t tag, Picoseconds now) {
  if (free_.empty()) {
    free_.push_back(static_cast<std::int32_t>(flows_.size()));
    flows_.emplace_back();
  }
  const std::int32_t id = free_.back();
  free_.pop_back();
  Flow& flow = flows_[id];
  flow.links = links;
  flow.left = bytes / efficiency;
  flow.most = most / efficiency;
  flow.rate = 0;
  flow.since = now;
  flow.tag = tag;
  for (const std::int32_t link : links) {
    on_[link].push_back(id);
    bytes_[link] += bytes;
    touch(link);
  }
}

void Network::share(Picoseconds now, std::vector<Drain>& drains) {
  std::vector<std::int32_t> changed;
  for (const std::int32_t link : touched_) {
    is_touched_[link] = false;
    for (const std::int32_t id : on_[link]) {
      if (flows_[id].marked) continue;
      flows_[id].marked = true;
      changed.push_back(id);
    }
  }
  touched_.clear();
  for (const std::int32_t id : changed) {
    Flow& flow = flows_[id];
    flow.marked = false;
    double rate = flow.most;
    for (const std::int32_t link : flow.links) {
      rate = std::min(rate, bandwidths_[link] / static_cast<double>(on_[link].size()));
    }
    if (rate == flow.rate) continue;
    flow.left = std::max(0.0, flow.left - flow.rate * static_cast<double>(now - flow.since));
    flow.since = now;
    flow.rate = rate;
    ++flow.version;
    const double duration = flow.left / rate;
    if (duration > static_cast<double>(kLongest)) throw_too_long();
    drains.push_back({now + std::llround(duration), id, flow.version});
  }
}

bool Network::finish(const Drain& drain, std::uint64_t& tag) {
  Flow& flow = flows_[drain.flow];
  if (flow.version != drain.version) return false;
  ++flow.version;
  for (const std::int32_t link : flow.links) {
    auto& flows = on_[link];
    *std::find(flows.begin(), flows.end(), drain.flow) = flows.back();
    flows.pop_back();
    touch(link);
  }
  tag = flow.tag;
  free_.push_back(drain.flow);
  return true;
}

}  // namespace tutti::plan
