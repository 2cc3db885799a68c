// Which channel of a rank meets which of its peer, and which ranks form a multicast group.
//
// The k-th channel of a kind from rank a to rank b is one with the k-th of that kind from b to a. The k-th switch
// channel of a rank with some buffer and ranks is one with the k-th such of the others.
//
// Thread rule: a value, const after construction. It refers to no plan.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

class Links {
 public:
  static constexpr std::int32_t kUnpaired = -1;

  struct Group {
    BufferKind buffer = BufferKind::kInput;
    std::vector<std::int32_t> ranks;
    std::vector<std::int32_t> members;  // ranks that have a channel to this group
  };

  // The plan's ranks and channels must be in range (check_structure makes sure before it asks).
  explicit Links(const Plan& plan);

  // The channel at the peer that `channel` of `rank` meets, or kUnpaired.
  std::int32_t partner(ChannelKind kind, std::int32_t rank, std::int32_t channel) const;

  // Index into groups().
  std::int32_t group_of(std::int32_t rank, std::int32_t switch_channel) const;
  const std::vector<Group>& groups() const { return groups_; }

 private:
  void pair(const Plan& plan, ChannelKind kind);
  void gather_groups(const Plan& plan);

  // [kind][rank][channel]
  std::array<std::vector<std::vector<std::int32_t>>, kChannelKindCount> partners_;
  std::vector<std::vector<std::int32_t>> group_of_;  // [rank][switch channel]
  std::vector<Group> groups_;
};

// Whose buffer an operand of kind kLocal or kRemote lies in.
struct Place {
  std::int32_t rank = 0;
  BufferKind buffer = BufferKind::kInput;
};
Place place_of(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op,
               const Operand& operand);

}  // namespace tutti::plan
