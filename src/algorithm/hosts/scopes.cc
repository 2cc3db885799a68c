#include "algorithm/hosts/scopes.h"

#include <algorithm>

namespace tutti {

int neighbour_elsewhere(const CallContext& context) noexcept {
  const GroupHosts& hosts = *context.hosts;
  const auto ranks = static_cast<int>(hosts.host_of.size());
  const int left = (context.rank + ranks - 1) % ranks;
  return hosts.host_of[static_cast<std::size_t>(left)] != hosts.host ? left : -1;
}

void AmongHosts::enter() noexcept {
  std::sort(members_.begin(), members_.end());
  const int left = neighbour_elsewhere(context_);
  // As a member it is our left neighbour among them, and its first message is for us anyway.
  const bool member = std::binary_search(members_.begin(), members_.end(), left);
  context_.watched = member ? -1 : left;
  context_.members = members_.data();
  context_.size = static_cast<int>(members_.size());
  context_.rank = place_of(rank_);
}

int AmongHosts::place_of(int rank) const noexcept {
  return static_cast<int>(std::lower_bound(members_.begin(), members_.end(), rank) - members_.begin());
}

Outcome of_group(CallContext& context, Outcome on_host) noexcept {
  if (on_host.ok()) return on_host;
  const GroupHosts& hosts = *context.hosts;
  if (on_host.status == Status::kMismatch) {
    context.mismatched = hosts.here->mismatched_theirs();
    context.compared = hosts.here->mismatched_mine();
  }
  if (on_host.peer >= 0) on_host.peer = hosts.ranks_here()[static_cast<std::size_t>(on_host.peer)];
  return on_host;
}

}  // namespace tutti
