// Flows over links. A flow runs on all its links at once, at the least of its shares: a link gives each of its n flows
// an n-th of its bandwidth. Fair shares, since links interleave the packets of concurrent transfers, and first come,
// first served would let a large transfer hold up small ones. A flow that is slowed elsewhere leaves part of its share
// unused (max-min sharing would hand that out, at the price of touching every flow at every change), so no flow runs
// faster than its max-min share.
//
// Thread rule: one thread.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "plan/simulator/topology.h"

namespace tutti::plan {

inline constexpr double kUnlimited = std::numeric_limits<double>::max();

class Network {
 public:
  explicit Network(const std::vector<double>& bandwidths);  // of each link, bytes a picosecond

  // A flow that begins now; `tag` comes back when it has drained. Links must differ from each other. It takes
  // `efficiency` of what it gets of them, and no more than `most` bytes a picosecond.
  void start(const std::vector<std::int32_t>& links, double bytes, double efficiency, double most, std::uint64_t tag,
             Picoseconds now);

  struct Drain {
    Picoseconds time = 0;
    std::int32_t flow = 0;
    std::uint32_t version = 0;
  };
  // Shares anew after flows have begun or ended. `drains` gets the time at which each flow that changed will drain.
  void share(Picoseconds now, std::vector<Drain>& drains);
  // True if the drain still stands; then the flow is over and `tag` is its own.
  bool finish(const Drain& drain, std::uint64_t& tag);

  double bytes_over(std::int32_t link) const { return bytes_[link]; }

 private:
  struct Flow {
    std::vector<std::int32_t> links;
    double left = 0;  // bytes over efficiency
    double most = 0;  // rate, likewise
    double rate = 0;
    Picoseconds since = 0;  // `left` is of then
    std::uint64_t tag = 0;
    std::uint32_t version = 0;
    bool marked = false;
  };
  void touch(std::int32_t link);

  std::vector<double> bandwidths_;
  std::vector<double> bytes_;
  std::vector<std::vector<std::int32_t>> on_;  // flows by link
  std::vector<bool> is_touched_;
  std::vector<std::int32_t> touched_;
  std::vector<Flow> flows_;
  std::vector<std::int32_t> free_;
};

}  // namespace tutti::plan
