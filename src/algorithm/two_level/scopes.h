// A part of a call among one rank of each host, over messages; that on a host is CallContext::on_host().
//
// Thread rule: that of the call.
#pragma once

#include <vector>

#include "algorithm/algorithm.h"

namespace tutti {

// What algorithms over messages see: one rank of each host, in the order of the ranks. This rank must be one of them.
class AmongHosts {
 public:
  // The one of host h is `place_on(h)` of its ranks.
  template <class PlaceOn>
  AmongHosts(const CallContext& whole, const PlaceOn& place_on) : context_(whole) {
    const RankMap& ranks = whole.hosts->ranks;
    for (int h = 0; h < ranks.hosts(); ++h) members_.push_back(ranks.on(h)[static_cast<std::size_t>(place_on(h))]);
    enter();
  }
  AmongHosts(const AmongHosts&) = delete;

  CallContext& context() noexcept { return context_; }
  // Of one of these ranks.
  int place_of(int rank) const noexcept;

 private:
  void enter() noexcept;

  CallContext context_;
  std::vector<int> members_;
};

// The rank's left neighbour in the group if that is on another host, else -1.
int neighbour_elsewhere(const CallContext& context) noexcept;

// What has become of a part on this host, as the call's outcome: peers are ranks, and a mismatch is described.
Outcome of_group(CallContext& context, Outcome on_host) noexcept;

}  // namespace tutti
