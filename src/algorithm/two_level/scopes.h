// A part of a call among one rank of each host, over messages; that on a host is CallContext::on_host().
//
// Thread rule: that of the call.
#pragma once

#include <span>

#include "algorithm/algorithm.h"

namespace tutti {

// What algorithms over messages see: one rank of each host, in the order of the ranks. This rank must be one of them.
class AmongHosts {
 public:
  // The one of host h is `place_on(h)` of its ranks. Takes bytes_for(the group's) of the call's memory.
  template <class PlaceOn>
  AmongHosts(const CallContext& whole, const PlaceOn& place_on)
      : context_(whole), members_(whole.memory.take<int>(static_cast<std::size_t>(whole.hosts->ranks.hosts()))) {
    const RankMap& ranks = whole.hosts->ranks;
    for (int h = 0; h < ranks.hosts(); ++h) {
      members_[static_cast<std::size_t>(h)] = ranks.on(h)[static_cast<std::size_t>(place_on(h))];
    }
    enter();
  }
  AmongHosts(const AmongHosts&) = delete;
  static std::size_t bytes_for(const CallContext& whole) noexcept {
    return CallMemory::bytes_of<int>(static_cast<std::size_t>(whole.hosts->ranks.hosts()));
  }

  CallContext& context() noexcept { return context_; }
  // Of one of these ranks.
  int place_of(int rank) const noexcept;

 private:
  void enter() noexcept;

  CallContext context_;
  const std::span<int> members_;
};

// The rank's left neighbour in the group if that is on another host, else -1.
int neighbour_elsewhere(const CallContext& context) noexcept;

// What has become of a part on this host, as the call's outcome: peers are ranks, and a mismatch is described.
Outcome of_group(CallContext& context, Outcome on_host) noexcept;

}  // namespace tutti
