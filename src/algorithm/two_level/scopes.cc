#include "algorithm/two_level/scopes.h"

#include <algorithm>

namespace tutti {

int neighbour_elsewhere(const CallContext& context) noexcept {
  const RankMap& ranks = context.hosts->ranks;
  const int own = context.hosts->rank, left = (own + ranks.ranks() - 1) % ranks.ranks();
  return ranks.together(left, own) ? -1 : left;
}

void AmongHosts::enter() noexcept {
  std::sort(members_.begin(), members_.end());
  const int left = neighbour_elsewhere(context_);
  // As a member it is our left neighbour among them, and its first message is for us anyway.
  const bool member = std::binary_search(members_.begin(), members_.end(), left);
  context_.watched = member ? -1 : left;
  context_.members = members_.data();
  context_.size = static_cast<int>(members_.size());
  context_.rank = place_of(context_.hosts->rank);
}

int AmongHosts::place_of(int rank) const noexcept {
  return static_cast<int>(std::lower_bound(members_.begin(), members_.end(), rank) - members_.begin());
}

Outcome of_group(CallContext& context, Outcome on_host) noexcept {
  if (on_host.ok()) return on_host;
  if (on_host.status == Status::kMismatch) {
    context.mismatched = context.hosts->host->mismatched_theirs();
    context.compared = context.hosts->host->mismatched_mine();
  }
  return context.hosts->of_ranks(on_host);
}

}  // namespace tutti
