// Pairs channels by counting them.
#include "plan/links.h"

#include <map>
#include <tuple>
#include <utility>

namespace tutti::plan {

Links::Links(const Plan& plan) {
  pair(plan, ChannelKind::kMemory);
  pair(plan, ChannelKind::kPort);
  gather_groups(plan);
}

void Links::pair(const Plan& plan, ChannelKind kind) {
  auto& partners = partners_[static_cast<int>(kind)];
  partners.resize(plan.ranks.size());
  // (from, to) -> the channels in order
  std::map<std::pair<std::int32_t, std::int32_t>, std::vector<std::int32_t>> between;
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const auto& peers = plan.ranks[rank].channels_of(kind);
    partners[rank].assign(peers.size(), kUnpaired);
    for (std::size_t i = 0; i < peers.size(); ++i) {
      between[{static_cast<std::int32_t>(rank), peers[i]}].push_back(static_cast<std::int32_t>(i));
    }
  }
  for (const auto& [ends, channels] : between) {
    const auto back = between.find({ends.second, ends.first});
    if (back == between.end()) continue;
    for (std::size_t i = 0; i < channels.size() && i < back->second.size(); ++i) {
      partners[ends.first][channels[i]] = back->second[i];
    }
  }
}

void Links::gather_groups(const Plan& plan) {
  // (buffer, ranks, how many of the same came before on this rank) -> group
  std::map<std::tuple<BufferKind, std::vector<std::int32_t>, int>, std::int32_t> known;
  group_of_.resize(plan.ranks.size());
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    std::map<std::pair<BufferKind, std::vector<std::int32_t>>, int> before;
    for (const SwitchChannel& channel : plan.ranks[rank].switch_channels) {
      const int nth = before[{channel.buffer, channel.ranks}]++;
      const auto [found, added] =
          known.try_emplace({channel.buffer, channel.ranks, nth}, static_cast<std::int32_t>(groups_.size()));
      if (added) groups_.push_back({channel.buffer, channel.ranks, {}});
      groups_[found->second].members.push_back(static_cast<std::int32_t>(rank));
      group_of_[rank].push_back(found->second);
    }
  }
}

std::int32_t Links::partner(ChannelKind kind, std::int32_t rank, std::int32_t channel) const {
  return partners_[static_cast<int>(kind)][rank][channel];
}

std::int32_t Links::group_of(std::int32_t rank, std::int32_t switch_channel) const {
  return group_of_[rank][switch_channel];
}

Place place_of(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op,
               const Operand& operand) {
  if (operand.place == Operand::Place::kLocal) return {rank, operand.buffer};
  const RemoteBuffer& remote = plan.ranks[rank].remote_buffers[block.buffers_of(op.channel)[operand.id]];
  return {remote.rank, remote.buffer};
}

}  // namespace tutti::plan
