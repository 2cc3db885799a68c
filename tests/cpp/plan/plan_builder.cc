#include "plan/plan_builder.h"

#include <algorithm>

namespace tutti::plan {

PlanBuilder::PlanBuilder(PlanCollective collective, std::int32_t ranks, std::int32_t input, std::int32_t output,
                         std::int32_t scratch) {
  constexpr const char* kNames[] = {"allreduce", "allgather", "reducescatter", "alltoall", "sendrecv", "broadcast",
                                    "reduce",    "gather",    "scatter",       "test",     "custom"};
  plan.name = "built";
  plan.collective = collective;
  plan.collective_name = kNames[static_cast<int>(collective)];
  plan.ranks.resize(static_cast<std::size_t>(ranks));
  for (Rank& rank : plan.ranks) rank.chunks = {input, output, scratch};
}

PlanBuilder::Block PlanBuilder::at(std::int32_t rank, std::int32_t block) {
  auto& blocks = plan.ranks[rank].blocks;
  if (blocks.size() <= static_cast<std::size_t>(block)) blocks.resize(static_cast<std::size_t>(block) + 1);
  return {*this, rank, block};
}

std::int32_t PlanBuilder::Block::channel(ChannelKind kind, std::int32_t peer, int nth) const {
  auto& channels = builder_->plan.ranks[rank_].channels[static_cast<int>(kind)];
  std::int32_t index = -1;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    if (channels[i] == peer && nth-- == 0) index = static_cast<std::int32_t>(i);
  }
  while (index < 0 || nth >= 0) {
    channels.push_back(peer);
    index = static_cast<std::int32_t>(channels.size()) - 1;
    --nth;
  }
  return intern(own().channels[static_cast<int>(kind)], index);
}

Operand PlanBuilder::Block::remote(ChannelKind kind, std::int32_t peer, BufferKind buffer, std::int32_t index,
                                   std::int32_t size) const {
  auto& buffers = builder_->plan.ranks[rank_].remote_buffers;
  auto found = std::find_if(buffers.begin(), buffers.end(),
                            [&](const RemoteBuffer& b) { return b.rank == peer && b.buffer == buffer; });
  if (found == buffers.end()) found = buffers.insert(buffers.end(), {peer, buffer, false, false});
  (kind == ChannelKind::kMemory ? found->by_memory : found->by_port) = true;
  const auto id = static_cast<std::int32_t>(found - buffers.begin());
  return {Operand::Place::kRemote, kI, intern(own().remote_buffers[static_cast<int>(kind)], id), index, size};
}

Operand PlanBuilder::Block::group(BufferKind buffer, std::int32_t index, std::int32_t size) const {
  std::vector<std::int32_t> everyone;
  for (std::size_t i = 0; i < builder_->plan.ranks.size(); ++i) everyone.push_back(static_cast<std::int32_t>(i));
  const std::int32_t channel = intern(builder_->plan.ranks[rank_].switch_channels, SwitchChannel{buffer, everyone});
  const std::int32_t id = intern(own().channels[static_cast<int>(ChannelKind::kSwitch)], channel);
  return {Operand::Place::kGroup, kI, id, index, size};
}

Operation& PlanBuilder::Block::add(Operation op) const {
  own().operations.push_back(std::move(op));
  return own().operations.back();
}

const PlanBuilder::Block& PlanBuilder::Block::nop() const {
  add({});
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::count(OpKind kind, ChannelKind kind_of_channel, std::int32_t peer,
                                                    int nth) const {
  Operation op;
  op.kind = kind;
  op.channel = kind_of_channel;
  op.channel_ids = {channel(kind_of_channel, peer, nth)};
  add(std::move(op));
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::signal(std::int32_t peer, int nth, OpKind kind) const {
  return count(kind, ChannelKind::kMemory, peer, nth);
}
const PlanBuilder::Block& PlanBuilder::Block::wait(std::int32_t peer, int nth, OpKind kind) const {
  return count(kind, ChannelKind::kMemory, peer, nth);
}
const PlanBuilder::Block& PlanBuilder::Block::port_signal(std::int32_t peer, int nth) const {
  return count(OpKind::kSignal, ChannelKind::kPort, peer, nth);
}
const PlanBuilder::Block& PlanBuilder::Block::port_wait(std::int32_t peer, int nth) const {
  return count(OpKind::kWait, ChannelKind::kPort, peer, nth);
}
const PlanBuilder::Block& PlanBuilder::Block::flush(std::int32_t peer, int nth) const {
  return count(OpKind::kFlush, ChannelKind::kPort, peer, nth);
}

const PlanBuilder::Block& PlanBuilder::Block::barrier(std::int32_t id, std::int32_t blocks) const {
  Operation op;
  op.kind = OpKind::kBarrier;
  op.barrier_id = id;
  op.barrier_blocks = blocks;
  add(std::move(op));
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::acquire(std::int32_t semaphore) const {
  Operation op;
  op.kind = OpKind::kSemAcquire;
  op.semaphore_ids = {semaphore};
  add(std::move(op));
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::release(std::int32_t semaphore) const {
  Operation op;
  op.kind = OpKind::kSemRelease;
  op.semaphore_ids = {semaphore};
  add(std::move(op));
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::move(OpKind kind, std::vector<Operand> sources,
                                                   std::vector<Operand> destinations) const {
  Operation op;
  op.kind = kind;
  op.sources = std::move(sources);
  op.destinations = std::move(destinations);
  add(std::move(op));
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::move_memory(OpKind kind, std::vector<Operand> sources,
                                                          std::vector<Operand> destinations) const {
  move(kind, std::move(sources), std::move(destinations));
  own().operations.back().channel = ChannelKind::kMemory;
  return *this;
}

const PlanBuilder::Block& PlanBuilder::Block::copy(Operand source, Operand destination) const {
  return move(OpKind::kCopy, {source}, {destination});
}

const PlanBuilder::Block& PlanBuilder::Block::put(std::int32_t peer, Operand source, BufferKind buffer,
                                                  std::int32_t index) const {
  return move_memory(OpKind::kPut, {source}, {remote(ChannelKind::kMemory, peer, buffer, index, source.size)});
}

const PlanBuilder::Block& PlanBuilder::Block::put_port(OpKind kind, std::int32_t peer, Operand source,
                                                       BufferKind buffer, std::int32_t index, int nth) const {
  move(kind, {source}, {remote(ChannelKind::kPort, peer, buffer, index, source.size)});
  Operation& op = own().operations.back();
  op.channel = ChannelKind::kPort;
  op.channel_ids = {channel(ChannelKind::kPort, peer, nth)};
  return *this;
}

Plan ring_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    const std::int32_t next = (r + 1) % ranks;
    const std::int32_t before = (r + ranks - 1) % ranks;
    // Channel 0 carries data to the next rank, channel 1 comes from the one before; with two ranks they are two
    // channels between the same pair, crossed so that each one's outgoing meets the other's incoming.
    const bool crossed = ranks == 2 && r == 1;
    const int out = crossed ? 1 : 0;
    const int in = ranks == 2 ? 1 - out : 0;
    // The partial sum of chunk c travels from rank c + 1 around to rank c, then the total once around.
    block.signal(before, in, OpKind::kRelaxedSignal).wait(next, out, OpKind::kRelaxedWait).nop();
    for (std::int32_t step = 0; step + 1 < ranks; ++step) {
      const std::int32_t chunk = (r + ranks - 1 - step) % ranks;
      block.put(next, local(step == 0 ? kI : kO, chunk), kS, chunk).nop().signal(next, out).wait(before, in).nop();
      const std::int32_t mine = (chunk + ranks - 1) % ranks;
      block.move(OpKind::kReduce, {local(kS, mine), local(kI, mine)}, {local(kO, mine)}).nop();
    }
    // Nobody may overwrite an output chunk that its owner still sends from.
    for (std::int32_t step = 0; step + 1 < ranks; ++step) {
      const std::int32_t chunk = (r + ranks - step) % ranks;
      block.put(next, local(kO, chunk), kO, chunk).nop().signal(next, out).wait(before, in).nop();
    }
  }
  return builder.plan;
}

Plan all_pairs_all_gather(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    std::int32_t index = 0;
    for (std::int32_t peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      const auto block = builder.at(r, index++);
      block.signal(peer, 0, OpKind::kRelaxedSignal).wait(peer, 0, OpKind::kRelaxedWait).nop();
      block.put(peer, local(kI, 0), kO, r).nop().signal(peer).wait(peer);
    }
    builder.at(r, index).copy(local(kI, 0), local(kO, r));
  }
  return builder.plan;
}

Plan packet_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    std::vector<Operand> sources{local(kI, 0)};
    for (std::int32_t peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {block.remote(ChannelKind::kMemory, peer, kS, r)});
      sources.push_back(local(kS, peer));
    }
    block.move(OpKind::kReducePackets, sources, {local(kO, 0)});
  }
  return builder.plan;
}

Plan port_packets_in_parts(std::int32_t ranks) {
  constexpr std::int32_t kParts = 2;
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    for (std::int32_t part = 0; part < kParts; ++part) {
      const auto block = builder.at(r, part);
      block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)});
      std::vector<Operand> sources{local(kI, 0)};
      for (std::int32_t peer = 0; peer < ranks; ++peer) {
        if (peer == r) continue;
        block.put_port(OpKind::kReadPutPackets, peer, local(kS, r), kS, r);
        sources.push_back(local(kS, peer));
      }
      block.move(OpKind::kReducePackets, sources, {local(kO, 0)});
      for (Operation& op : block.operations()) op.part = GroupPart{part, kParts};
      for (std::int32_t peer = 0; peer < ranks; ++peer) {
        if (peer != r) block.flush(peer);
      }
    }
  }
  return builder.plan;
}

Plan doubling_all_reduce(std::int32_t ranks) {
  std::int32_t steps = 0;
  while ((1 << steps) < ranks) ++steps;
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, std::max(steps, 1));
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    block.copy(local(kI, 0), local(kO, 0)).nop();
    for (std::int32_t step = 0; step < steps; ++step) {
      const std::int32_t peer = r ^ (1 << step);
      block.signal(peer, 0, OpKind::kRelaxedSignal).wait(peer, 0, OpKind::kRelaxedWait).nop();
      block.put(peer, local(kO, 0), kS, step).nop().signal(peer).wait(peer).nop();
      block.move(OpKind::kReduce, {local(kO, 0), local(kS, step)}, {local(kO, 0)}).nop();
    }
  }
  return builder.plan;
}

Plan tree_all_reduce(std::int32_t ranks) {
  std::int32_t steps = 0;
  while ((1 << steps) < ranks) ++steps;
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, std::max(steps, 1));
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    block.copy(local(kI, 0), local(kO, 0)).nop();
    std::int32_t joined = 0;  // steps in which this rank is the parent
    for (; joined < steps && (r & (1 << joined)) == 0; ++joined) {
      const std::int32_t child = r | (1 << joined);
      if (child >= ranks) continue;
      block.signal(child, 0, OpKind::kRelaxedSignal).wait(child).nop();
      block.move(OpKind::kReduce, {local(kO, 0), local(kS, joined)}, {local(kO, 0)}).nop();
    }
    if (r != 0) {
      const std::int32_t parent = r & ~(1 << joined);
      block.wait(parent, 0, OpKind::kRelaxedWait).nop().put(parent, local(kO, 0), kS, joined).nop().signal(parent);
      block.wait(parent).nop();
    }
    for (std::int32_t step = joined; step-- > 0;) {
      const std::int32_t child = r | (1 << step);
      if (child >= ranks) continue;
      block.put(child, local(kO, 0), kO, 0).nop().signal(child);
    }
  }
  return builder.plan;
}

}  // namespace tutti::plan
