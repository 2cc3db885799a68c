// Hash-consed reduction trees with what they contain.
#include "plan/verifier/values.h"

#include <bit>
#include <utility>

namespace tutti::plan {
namespace {

constexpr std::int64_t kInputTag = -1;
constexpr std::int64_t kReductionTag = -2;

// Taking part twice changes nothing.
bool idempotent(ReduceKind kind) {
  return kind == ReduceKind::kMin || kind == ReduceKind::kMax || kind == ReduceKind::kBand || kind == ReduceKind::kBor;
}

}  // namespace

Values::Values(std::size_t ranks, Budget& budget) : words_((ranks + 63) / 64), budget_(budget), nodes_(1) {}

// The node of a key of so many numbers.
ValueId Values::keep(Node node, std::size_t key) {
  budget_.spend(1 + words_ / 8);
  budget_.hold(kNodeBytes + sizeof(decltype(known_)::value_type) + key * sizeof(std::int64_t) +
               node.members.size() * sizeof(node.members[0]));
  budget_.append(nodes_, std::move(node));
  return static_cast<ValueId>(nodes_.size()) - 1;
}

ValueId Values::input(std::int32_t rank, std::int64_t place, std::int32_t invocation) {
  const auto [found, added] =
      known_.try_emplace({kInputTag, rank, place, invocation}, static_cast<ValueId>(nodes_.size()));
  if (!added) return found->second;
  Node node;
  node.summary = {true, false, ReduceKind::kSum, place, invocation, 1, rank};
  node.members.assign(words_, 0);
  node.members[static_cast<std::size_t>(rank) / 64] |= std::uint64_t{1} << (rank % 64);
  return keep(std::move(node), 4);
}

ValueId Values::reduce(ReduceKind kind, std::vector<ValueId> parts) {
  if (parts.size() == 1) return parts[0];
  if (parts[0] > parts[1]) std::swap(parts[0], parts[1]);
  std::vector<std::int64_t> key{kReductionTag, static_cast<std::int64_t>(kind)};
  key.insert(key.end(), parts.begin(), parts.end());
  const auto [found, added] = known_.try_emplace(std::move(key), static_cast<ValueId>(nodes_.size()));
  return added ? combine(kind, std::move(parts)) : found->second;
}

ValueId Values::combine(ReduceKind kind, std::vector<ValueId> parts) {
  Node node;
  node.members.assign(words_, 0);
  const Summary& first = nodes_[parts[0]].summary;
  node.summary = {true, true, kind, first.place, first.invocation, 0, -1};
  budget_.spend(parts.size() * (1 + words_ / 8));
  for (const ValueId id : parts) {
    const Node& part = nodes_[id];
    const bool agrees = part.summary.sound && part.summary.place == first.place &&
                        part.summary.invocation == first.invocation &&
                        (!part.summary.reduced || part.summary.reduce == kind);
    if (!agrees) {
      node.summary.sound = false;
      break;
    }
    for (std::size_t i = 0; i < words_; ++i) {
      if ((node.members[i] & part.members[i]) != 0 && !idempotent(kind)) node.summary.sound = false;
      node.members[i] |= part.members[i];
    }
  }
  for (const std::uint64_t word : node.members) node.summary.count += std::popcount(word);
  return keep(std::move(node), parts.size() + 2);
}

bool Values::contains(ValueId value, std::int32_t rank) const {
  const auto& members = nodes_[value].members;
  const auto word = static_cast<std::size_t>(rank) / 64;
  return word < members.size() && ((members[word] >> (rank % 64)) & 1) != 0;
}

}  // namespace tutti::plan
