#include "executor/program/packet_writers.h"

#include <algorithm>

#include "plan/operations.h"

namespace tutti::executor {
namespace {

using plan::BufferKind;
using plan::Operand;

// What is looked for, and where.
struct Search {
  const plan::Plan& plan;
  std::int32_t rank;
  std::int32_t first;
  std::int32_t end;

  bool reaches(const plan::Rank& writer, std::int32_t writer_rank, const plan::ThreadBlock& block,
               const plan::Operation& op, const Operand& operand) const {
    if (operand.index >= end || operand.index + operand.size <= first) return false;
    switch (operand.place) {
      case Operand::Place::kLocal:
        return writer_rank == rank && operand.buffer == BufferKind::kScratch;
      case Operand::Place::kRemote: {
        const plan::RemoteBuffer& buffer =
            writer.remote_buffers[static_cast<std::size_t>(block.buffers_of(op.channel)[operand.id])];
        return buffer.rank == rank && buffer.buffer == BufferKind::kScratch;
      }
      default: {
        const auto id = static_cast<std::size_t>(block.channels_of(plan::ChannelKind::kSwitch)[operand.id]);
        const plan::SwitchChannel& group = writer.switch_channels[id];
        return group.buffer == BufferKind::kScratch &&
               std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end();
      }
    }
  }

  bool writes(const plan::Rank& writer, std::int32_t writer_rank, const plan::ThreadBlock& block,
              const plan::Operation& op) const {
    for (std::size_t i = 0; i < op.destinations.size(); ++i) {
      if (plan::destination_rule(op, i).format == plan::Format::kPackets &&
          reaches(writer, writer_rank, block, op, op.destinations[i])) {
        return true;
      }
    }
    return false;
  }
};

}  // namespace

std::vector<std::int32_t> packet_writers(const plan::Plan& plan, std::int32_t rank, std::int32_t first,
                                         std::int32_t count) {
  const Search search{plan, rank, first, first + count};
  std::vector<std::int32_t> ranks;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    const auto writer_rank = static_cast<std::int32_t>(r);
    const auto writes = [&](const plan::ThreadBlock& block) {
      return std::any_of(block.operations.begin(), block.operations.end(), [&](const plan::Operation& op) {
        return search.writes(plan.ranks[r], writer_rank, block, op);
      });
    };
    if (std::any_of(plan.ranks[r].blocks.begin(), plan.ranks[r].blocks.end(), writes)) ranks.push_back(writer_rank);
  }
  return ranks;
}

}  // namespace tutti::executor
