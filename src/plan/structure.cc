// Range checks of a rank and its operations; what spans ranks is in structure_counters.cc.
#include "plan/structure.h"

#include <algorithm>
#include <set>
#include <string>

#include "plan/json_document.h"
#include "plan/limits.h"
#include "plan/links.h"
#include "plan/operations.h"
#include "plan/sizes.h"
#include "plan/structure_counters.h"

namespace tutti::plan {
namespace {

std::string gpu_path(std::size_t rank) { return "/gpus/" + std::to_string(rank); }

void check_id(std::int32_t id, std::size_t count, const std::string& path, std::string_view what) {
  if (id < 0 || static_cast<std::size_t>(id) >= count) {
    throw_at(path, std::to_string(id) + " names no " + std::string(what) + "; there are " + std::to_string(count));
  }
}

// What stands beside the thread blocks of a rank, one of `ranks`.
void check_resources(const Plan& plan, std::size_t rank, std::size_t ranks) {
  const Rank& own = plan.ranks[rank];
  for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
    for (const std::int32_t peer : own.channels_of(kind)) {
      check_id(peer, ranks, gpu_path(rank) + "/channels", "rank");
      if (peer == static_cast<std::int32_t>(rank)) throw_at(gpu_path(rank) + "/channels", "a channel to itself");
    }
  }
  for (std::size_t i = 0; i < own.remote_buffers.size(); ++i) {
    const std::string path = gpu_path(rank) + "/remote_buffers/" + std::to_string(i);
    check_id(own.remote_buffers[i].rank, ranks, path + "/rank", "rank");
    if (own.remote_buffers[i].rank == static_cast<std::int32_t>(rank)) throw_at(path + "/rank", "a rank's own buffer");
    if (!own.remote_buffers[i].by_memory && !own.remote_buffers[i].by_port) {
      throw_at(path + "/access_channel_types", "empty");
    }
  }
  for (const SwitchChannel& group : own.switch_channels) {
    std::set<std::int32_t> distinct;
    for (const std::int32_t member : group.ranks) {
      check_id(member, ranks, gpu_path(rank) + "/channels", "rank");
      if (!distinct.insert(member).second) throw_at(gpu_path(rank) + "/channels", "a group names a rank twice");
    }
    if (!distinct.contains(static_cast<std::int32_t>(rank))) {
      throw_at(gpu_path(rank) + "/channels", "a group of which rank " + std::to_string(rank) + " is no member");
    }
  }
}

void check_tables(const Plan& plan, std::size_t rank, std::size_t index) {
  const Rank& own = plan.ranks[rank];
  const ThreadBlock& block = own.blocks[index];
  const std::string path = gpu_path(rank) + "/threadblocks/" + std::to_string(index);
  for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort, ChannelKind::kSwitch}) {
    const std::size_t count = kind == ChannelKind::kSwitch ? own.switch_channels.size() : own.channels_of(kind).size();
    std::set<std::int32_t> distinct;
    for (const std::int32_t id : block.channels_of(kind)) {
      check_id(id, count, path + "/channels", std::string(to_string(kind)) + " channel of this rank");
      if (!distinct.insert(id).second)
        throw_at(path + "/channels", "channel " + std::to_string(id) + " is there twice");
    }
    if (kind == ChannelKind::kSwitch) {
      if (!block.buffers_of(kind).empty()) throw_at(path + "/remote_buffer_refs", "not through switch channels");
      continue;
    }
    for (const std::int32_t id : block.buffers_of(kind)) {
      check_id(id, own.remote_buffers.size(), path + "/remote_buffer_refs", "remote buffer of this rank");
      const RemoteBuffer& remote = own.remote_buffers[id];
      if (!(kind == ChannelKind::kMemory ? remote.by_memory : remote.by_port)) {
        throw_at(path + "/remote_buffer_refs", "remote buffer " + std::to_string(id) + " is not reached by " +
                                                   std::string(to_string(kind)) + " channels");
      }
    }
  }
}

// Checks the operations of one thread block. Without `links` its rank stands for all, which are like it.
class OperationCheck {
 public:
  OperationCheck(const Plan& plan, const Links* links, std::size_t rank, std::size_t block)
      : plan_(plan), links_(links), rank_(rank), own_(plan.ranks[rank]), block_(own_.blocks[block]) {}

  void check(const Operation& op, const std::string& path) const {
    for (const std::int32_t id : op.channel_ids) {
      check_id(id, block_.channels_of(op.channel).size(), path + "/channel_ids",
               std::string(to_string(op.channel)) + " channel of this thread block");
    }
    for (const std::int32_t id : op.semaphore_ids) {
      check_id(id, own_.semaphores.size(), path + "/semaphore_ids", "semaphore of this rank");
    }
    if (op.kind == OpKind::kBarrier && static_cast<std::size_t>(op.barrier_blocks) > own_.blocks.size()) {
      throw_at(path + "/num_threadblocks", "more than the rank's " + std::to_string(own_.blocks.size()));
    }
    for (std::size_t i = 0; i < op.sources.size(); ++i) {
      check_operand(op, op.sources[i], source_rule(op, i), path + "/src_buff/" + std::to_string(i));
    }
    for (std::size_t i = 0; i < op.destinations.size(); ++i) {
      const std::string at = path + "/dst_buff/" + std::to_string(i);
      check_operand(op, op.destinations[i], destination_rule(op, i), at);
      if (op.channel == ChannelKind::kPort && moves_data(op.kind)) check_peer(op, i, at);
    }
  }

 private:
  void check_operand(const Operation& op, const Operand& operand, const OperandRule& rule,
                     const std::string& path) const {
    if (operand.place == Operand::Place::kGroup) {
      check_id(operand.id, block_.channels_of(ChannelKind::kSwitch).size(), path + "/switch_channel_id",
               "switch channel of this thread block");
      const std::int32_t channel = block_.channels_of(ChannelKind::kSwitch)[operand.id];
      const SwitchChannel& group = own_.switch_channels[channel];
      if (links_ != nullptr && !complete(channel)) throw_at(path, "not every rank of the group has this channel");
      for (const std::int32_t member : group.ranks) check_range(member, group.buffer, operand, rule, path);
      return;
    }
    if (operand.place == Operand::Place::kRemote) {
      check_id(operand.id, block_.buffers_of(op.channel).size(), path + "/buffer_id",
               "remote buffer of this thread block");
    }
    const Place place = place_of(plan_, static_cast<std::int32_t>(rank_), block_, op, operand);
    check_range(place.rank, place.buffer, operand, rule, path);
  }

  bool complete(std::int32_t switch_channel) const {
    const Links::Group& group = links_->groups()[links_->group_of(static_cast<std::int32_t>(rank_), switch_channel)];
    return group.members.size() == group.ranks.size();
  }

  void check_range(std::int32_t rank, BufferKind buffer, const Operand& operand, const OperandRule& rule,
                   const std::string& path) const {
    if (rule.format == Format::kPackets && buffer != BufferKind::kScratch) {
      throw_at(path, "packets live in scratch (\"s\") only");
    }
    const Rank& holder = links_ == nullptr ? own_ : plan_.ranks[rank];
    const std::int64_t chunks = holder.chunks_of(buffer);
    if (std::int64_t{operand.index} + operand.size > chunks) {
      throw_at(path + "/index", "chunks " + std::to_string(operand.index) + " to " +
                                    std::to_string(std::int64_t{operand.index} + operand.size - 1) + " of buffer \"" +
                                    std::string(to_string(buffer)) + "\" of rank " + std::to_string(rank) +
                                    ", which has " + std::to_string(chunks));
    }
  }

  void check_peer(const Operation& op, std::size_t index, const std::string& path) const {
    const std::int32_t peer = own_.channels_of(op.channel)[block_.channels_of(op.channel)[op.channel_ids[index]]];
    const Place place = place_of(plan_, static_cast<std::int32_t>(rank_), block_, op, op.destinations[index]);
    if (place.rank != peer) {
      throw_at(path,
               "a buffer of rank " + std::to_string(place.rank) + " through a channel to rank " + std::to_string(peer));
    }
  }

  const Plan& plan_;
  const Links* links_;
  std::size_t rank_;
  const Rank& own_;
  const ThreadBlock& block_;
};

void check_blocks(const Plan& plan, const Links* links, std::size_t rank) {
  for (std::size_t b = 0; b < plan.ranks[rank].blocks.size(); ++b) {
    check_tables(plan, rank, b);
    const OperationCheck check(plan, links, rank, b);
    const auto& operations = plan.ranks[rank].blocks[b].operations;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      check.check(operations[i], path_of(rank, b, i));
      for (std::size_t k = 0; k < operations[i].body.size(); ++k) {
        check.check(operations[i].body[k], path_of(rank, b, i, k));
      }
    }
  }
}

}  // namespace

std::string path_of(std::size_t rank, std::size_t block, std::size_t op, std::optional<std::size_t> inner) {
  std::string path = gpu_path(rank) + "/threadblocks/" + std::to_string(block) + "/ops/" + std::to_string(op);
  if (inner) path += "/ops/" + std::to_string(*inner);
  return path;
}

void check_structure(const Plan& plan) {
  if (static_cast<std::size_t>(plan.root) >= plan.ranks.size()) {
    throw_at("/root", "rank " + std::to_string(plan.root) + " is not there");
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) check_resources(plan, rank, plan.ranks.size());
  const Links links(plan);
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) check_blocks(plan, &links, rank);
  check_counters(plan, links);
  check_shape(plan);
}

void check_first_rank(const Plan& plan, std::size_t ranks) {
  check_resources(plan, 0, ranks);
  check_blocks(plan, nullptr, 0);
}

std::optional<ReduceKind> common_reduction(const Plan& plan) {
  std::optional<ReduceKind> common;
  const auto agrees = [&common](const Operation& op) {
    if (!reduces(op.kind)) return true;
    if (!common) common = op.reduce;
    return *common == op.reduce;
  };
  for (const Rank& rank : plan.ranks) {
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) {
        if (!agrees(op) || !std::all_of(op.body.begin(), op.body.end(), agrees)) return std::nullopt;
      }
    }
  }
  return common;
}

}  // namespace tutti::plan
