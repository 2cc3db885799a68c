// Tables are small but for all-pairs, so they are searched as they are.
#include "plan/generators/rank_writer.h"

#include <algorithm>
#include <utility>

#include "plan/operations.h"

namespace tutti::plan {
namespace {

constexpr auto kMemory = static_cast<std::size_t>(ChannelKind::kMemory);

}  // namespace

void RankWriter::begin_block() {
  first_channel_ = rank_.channels[kMemory].size();
  rank_.blocks.emplace_back();
}

std::int32_t RankWriter::channel(std::int32_t peer) {
  auto& peers = rank_.channels[kMemory];
  const auto begin = peers.begin() + static_cast<std::ptrdiff_t>(first_channel_);
  const auto found = std::find(begin, peers.end(), peer);
  if (found != peers.end()) return static_cast<std::int32_t>(found - begin);
  block().channels[kMemory].push_back(static_cast<std::int32_t>(peers.size()));
  peers.push_back(peer);
  return static_cast<std::int32_t>(block().channels[kMemory].size()) - 1;
}

std::int32_t RankWriter::remote_buffer(std::int32_t peer, BufferKind buffer) {
  auto& ids = block().remote_buffers[kMemory];
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const RemoteBuffer& known = rank_.remote_buffers[ids[i]];
    if (known.rank == peer && known.buffer == buffer) return static_cast<std::int32_t>(i);
  }
  ids.push_back(static_cast<std::int32_t>(rank_.remote_buffers.size()));
  rank_.remote_buffers.push_back({peer, buffer, true, false});
  return static_cast<std::int32_t>(ids.size()) - 1;
}

void RankWriter::nop() { block().operations.emplace_back(); }

void RankWriter::signal(const std::vector<std::int32_t>& peers, OpKind kind) {
  if (peers.empty()) return;
  Operation op;
  op.kind = kind;
  op.channel = ChannelKind::kMemory;
  for (const std::int32_t peer : peers) op.channel_ids.push_back(channel(peer));
  block().operations.push_back(std::move(op));
}

void RankWriter::wait(const std::vector<std::int32_t>& peers) {
  if (peers.empty()) return;
  signal(peers, OpKind::kWait);
  nop();  // what follows is of other lanes than the one that waited
}

void RankWriter::enter(const std::vector<std::int32_t>& writers, const std::vector<std::int32_t>& targets) {
  signal(writers);
  wait(targets);
}

void RankWriter::move(OpKind kind, std::int32_t size, const std::vector<Operand>& sources,
                      const std::vector<Operand>& local, const std::vector<Remote>& remote) {
  Operation op;
  op.kind = kind;
  if (!remote.empty()) op.channel = ChannelKind::kMemory;
  op.sources = sources;
  op.destinations = local;
  for (const Remote& to : remote) {
    channel(to.rank);  // what is reached has a channel
    op.destinations.push_back(
        {Operand::Place::kRemote, BufferKind::kInput, remote_buffer(to.rank, to.buffer), to.index, 1});
  }
  for (Operand& operand : op.sources) operand.size = size;
  for (Operand& operand : op.destinations) operand.size = size;
  block().operations.push_back(std::move(op));
}

}  // namespace tutti::plan
