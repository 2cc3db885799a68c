// Parts of a call among some of its ranks: those of a host over its shared memory, or one of each host over messages.
//
// While an object of this file lives, rank, size and channels of the context are those of the part, so that what is
// written for all ranks runs among some unchanged. Thread rule: that of the call.
#pragma once

#include <vector>

#include "algorithm/algorithm.h"

namespace tutti {

// What host algorithms see: ranks are the places on this host. The rank must not be alone there.
class OnHost {
 public:
  explicit OnHost(CallContext& context) noexcept : context_(context), rank_(context.rank), size_(context.size) {
    context.rank = context.hosts->index;
    context.size = context.hosts->here->ranks();
    context.host = context.hosts->here;
  }
  ~OnHost() {
    context_.rank = rank_;
    context_.size = size_;
    context_.host = nullptr;
  }
  OnHost(const OnHost&) = delete;
  OnHost& operator=(const OnHost&) = delete;

 private:
  CallContext& context_;
  const int rank_, size_;
};

// What algorithms over messages see: one rank of each host, in the order of the ranks. This rank must be one of them.
class AmongHosts {
 public:
  // The one of host h is `place_on(h)` of its ranks.
  template <class PlaceOn>
  AmongHosts(CallContext& context, const PlaceOn& place_on)
      : context_(context), rank_(context.rank), size_(context.size) {
    const GroupHosts& hosts = *context.hosts;
    for (int h = 0; h < hosts.hosts(); ++h) {
      members_.push_back(hosts.ranks[static_cast<std::size_t>(h)][static_cast<std::size_t>(place_on(h))]);
    }
    enter();
  }
  ~AmongHosts() {
    context_.rank = rank_;
    context_.size = size_;
    context_.members = nullptr;
    context_.watched = -1;
  }
  AmongHosts(const AmongHosts&) = delete;
  AmongHosts& operator=(const AmongHosts&) = delete;

  // Of one of these ranks.
  int place_of(int rank) const noexcept;

 private:
  void enter() noexcept;

  CallContext& context_;
  const int rank_, size_;
  std::vector<int> members_;
};

// The rank's left neighbour in the group if that is on another host, else -1.
int neighbour_elsewhere(const CallContext& context) noexcept;

// What has become of a part on this host, as the call's outcome: peers are ranks, and a mismatch is described.
Outcome of_group(CallContext& context, Outcome on_host) noexcept;

}  // namespace tutti
