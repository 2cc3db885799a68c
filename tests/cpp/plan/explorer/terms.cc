#include "plan/explorer/terms.h"

#include <algorithm>

namespace tutti::plan::explorer {
namespace {

bool taking_twice_is_harmless(ReduceKind kind) {
  return kind == ReduceKind::kMin || kind == ReduceKind::kMax || kind == ReduceKind::kBand || kind == ReduceKind::kBor;
}

}  // namespace

Term Terms::input(const Origin& origin) {
  const auto [found, added] = inputs_.try_emplace(origin, next_);
  if (added) origins_[next_++] = origin;
  return found->second;
}

Term Terms::reduce(ReduceKind kind, const std::vector<Term>& parts) {
  Reduction reduction{kind, {}};
  for (const Term part : parts) {
    const auto known = parts_.find(part);
    if (known != parts_.end() && known->second.first == kind) {
      const auto& inner = known->second.second;
      reduction.second.insert(reduction.second.end(), inner.begin(), inner.end());
    } else {
      reduction.second.push_back(part);
    }
  }
  auto& all = reduction.second;
  std::sort(all.begin(), all.end());
  if (taking_twice_is_harmless(kind)) all.erase(std::unique(all.begin(), all.end()), all.end());
  if (all.size() == 1) return all[0];
  const auto [found, added] = reductions_.try_emplace(reduction, next_);
  if (added) parts_[next_++] = std::move(reduction);
  return found->second;
}

const Origin* Terms::origin(Term term) const {
  const auto found = origins_.find(term);
  return found == origins_.end() ? nullptr : &found->second;
}

}  // namespace tutti::plan::explorer
