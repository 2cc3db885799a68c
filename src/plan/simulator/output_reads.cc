#include "plan/simulator/output_reads.h"

#include <algorithm>

#include "plan/links.h"

namespace tutti::plan {

OutputReads::OutputReads(const Plan& plan) {
  for (const Rank& rank : plan.ranks) chunks_.emplace_back(rank.chunks_of(BufferKind::kOutput), plan.in_place);
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const ThreadBlock& block : plan.ranks[r].blocks) {
      for (const Operation& op : block.operations) add(plan, static_cast<std::int32_t>(r), block, op);
    }
  }
}

void OutputReads::add(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op) {
  for (const Operation& inner : op.body) add(plan, rank, block, inner);
  const auto mark = [](std::vector<bool>& chunks, const Operand& operand) {
    std::fill_n(chunks.begin() + operand.index, operand.size, true);
  };
  for (const Operand& source : op.sources) {
    if (source.place == Operand::Place::kGroup) {
      const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[source.id];
      const SwitchChannel& group = plan.ranks[rank].switch_channels[channel];
      if (group.buffer != BufferKind::kOutput) continue;
      for (const std::int32_t member : group.ranks) mark(chunks_[member], source);
      continue;
    }
    const Place at = place_of(plan, rank, block, op, source);
    if (at.buffer == BufferKind::kOutput) mark(chunks_[at.rank], source);
  }
}

bool OutputReads::any_of(std::int32_t rank, const Operand& operand) const {
  if (chunks_.empty()) return true;
  const auto begin = chunks_[rank].begin() + operand.index;
  return std::find(begin, begin + operand.size, true) != begin + operand.size;
}

}  // namespace tutti::plan
