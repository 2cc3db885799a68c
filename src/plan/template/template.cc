// From a template to its ranks.
#include "plan/template/template.h"

#include <string>
#include <utility>

#include "plan/json_document.h"
#include "plan/limits.h"
#include "plan/links.h"
#include "plan/structure.h"

namespace tutti::plan {
namespace {

// One rank 0 made into another rank.
class Mover {
 public:
  Mover(const Template& folded, std::int32_t by) : folded_(folded), origin_(folded.plan.ranks.at(0)), by_(by) {}

  Rank rank() {
    Rank out = origin_;
    for (auto& peers : out.channels) {
      for (std::int32_t& peer : peers) peer = peer_of(peer);
    }
    for (RemoteBuffer& remote : out.remote_buffers) remote.rank = peer_of(remote.rank);
    for (SwitchChannel& group : out.switch_channels) {
      for (std::int32_t& member : group.ranks) member = peer_of(member);
    }
    for (std::size_t b = 0; b < out.blocks.size(); ++b) {
      ThreadBlock& block = out.blocks[b];
      for (std::size_t i = 0; i < block.operations.size(); ++i) {
        move(block, block.operations[i], b, i, {});
        for (std::size_t k = 0; k < block.operations[i].body.size(); ++k) {
          move(block, block.operations[i].body[k], b, i, k);
        }
      }
    }
    return out;
  }

 private:
  std::int32_t peer_of(std::int32_t peer) const { return folded_.symmetry.moved(peer, by_); }

  // The buffer that an operand lies in, by the tables of rank 0.
  BufferKind buffer_of(const ThreadBlock& block, const Operation& op, const Operand& operand) const {
    if (operand.place == Operand::Place::kGroup) {
      return origin_.switch_channels[block.channels_of(ChannelKind::kSwitch)[operand.id]].buffer;
    }
    return place_of(folded_.plan, 0, block, op, operand).buffer;
  }

  void move(const ThreadBlock& block, Operation& op, std::size_t b, std::size_t i, std::optional<std::size_t> k) const {
    const auto shift = [&](Operand& operand, const char* list, std::size_t nth) {
      const BufferKind buffer = buffer_of(block, op, operand);
      if (buffer == BufferKind::kScratch) return;
      const std::int32_t chunks = origin_.chunks_of(buffer);
      const auto at = folded_.symmetry.moved_chunks(static_cast<int>(buffer), operand.index, operand.size, chunks, by_);
      if (!at) {
        throw_at(path_of(0, b, i, k) + "/" + list + "/" + std::to_string(nth),
                 "chunks " + std::to_string(operand.index) + " to " + std::to_string(operand.index + operand.size - 1) +
                     " would not lie side by side on rank " + std::to_string(by_) + " of the template");
      }
      operand.index = *at;
    };
    for (std::size_t n = 0; n < op.sources.size(); ++n) shift(op.sources[n], "src_buff", n);
    for (std::size_t n = 0; n < op.destinations.size(); ++n) shift(op.destinations[n], "dst_buff", n);
  }

  const Template& folded_;
  const Rank& origin_;
  std::int32_t by_;
};

std::int64_t operations_of(const Rank& rank) {
  std::int64_t count = 0;
  for (const ThreadBlock& block : rank.blocks) {
    for (const Operation& op : block.operations) count += 1 + static_cast<std::int64_t>(op.body.size());
  }
  return count;
}

// Operands, ids and entries of tables, and operations as several of these: what memory is needed for.
std::int64_t entries_of(const Rank& rank) {
  std::size_t count = 1 + rank.switch_channels.size() + rank.remote_buffers.size() + rank.semaphores.size();
  const auto add = [&count](const Operation& op) {
    count += 8 + op.sources.size() + op.destinations.size() + op.channel_ids.size() + op.semaphore_ids.size();
  };
  for (const auto& peers : rank.channels) count += peers.size();
  for (const SwitchChannel& group : rank.switch_channels) count += group.ranks.size();
  for (const ThreadBlock& block : rank.blocks) {
    for (const auto& ids : block.channels) count += 1 + ids.size();
    for (const auto& ids : block.remote_buffers) count += ids.size();
    for (const Operation& op : block.operations) {
      add(op);
      for (const Operation& inner : op.body) add(inner);
    }
  }
  return static_cast<std::int64_t>(count);
}

}  // namespace

Rank rank_of(const Template& folded, std::int32_t rank) { return Mover(folded, rank).rank(); }

std::int64_t operations_of(const Template& folded) {
  return folded.symmetry.ranks() * operations_of(folded.plan.ranks.at(0));
}

Plan written_out(const Template& folded) {
  // Moving takes numbers modulo the template's, so what is out of range would come back into it.
  check_first_rank(folded.plan, static_cast<std::size_t>(folded.symmetry.ranks()));
  if (folded.symmetry.ranks() > kMaxWritten / entries_of(folded.plan.ranks.at(0))) {
    throw_at("/template", "written out, it has " + std::to_string(operations_of(folded)) +
                              " operations, too many to hold; `tutti plan simulate` takes it as it is");
  }
  Plan plan = folded.plan;
  plan.ranks.clear();
  plan.ranks.reserve(static_cast<std::size_t>(folded.symmetry.ranks()));
  for (std::int32_t r = 0; r < folded.symmetry.ranks(); ++r) plan.ranks.push_back(rank_of(folded, r));
  check_structure(plan);
  plan.reduce = common_reduction(plan);
  return plan;
}

}  // namespace tutti::plan
