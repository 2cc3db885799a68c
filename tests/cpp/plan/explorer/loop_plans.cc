// Right plans with loops: iterations that meet by signals, semaphores, barriers and ports, loops of different units,
// and scratch that wraps. Units are so large that scratch of a fixed size holds one to four of them.
#include "plan/explorer/loop_plans.h"

#include <string>
#include <utility>

#include "plan/plan_builder.h"

namespace tutti::plan::explorer {
namespace {

constexpr auto kMemory = ChannelKind::kMemory;
constexpr auto kRelaxedSignal = OpKind::kRelaxedSignal;
constexpr auto kRelaxedWait = OpKind::kRelaxedWait;
constexpr std::int64_t kUnit = std::int64_t{1} << 25;

using At = PlanBuilder::Block;

// Makes a loop of what the block does from operation `first` on.
void repeat(const At& block, std::size_t first, std::int64_t unit, std::int32_t chunks = 1) {
  Operation loop;
  loop.kind = OpKind::kPipeline;
  loop.iteration = {unit, chunks};
  auto& all = block.operations();
  loop.body.assign(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
  all.resize(first);
  block.add(std::move(loop));
}

// The leaf says that it may be written, once a call.
void greet(const At& root, const At& leaf) {
  leaf.signal(0, 0, kRelaxedSignal);
  root.wait(1, 0, kRelaxedWait).nop();
}

// All is put in a loop and signalled once; the leaf copies it in a loop of another unit.
Plan signal_at_the_end(std::int64_t put_unit, std::int64_t copy_unit) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 1);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  greet(root, leaf);
  root.put(1, local(kI, 0), kS, 0).copy(local(kI, 0), local(kO, 0));
  repeat(root, 2, put_unit);
  root.nop().signal(1);
  leaf.wait(0).nop().copy(local(kS, 0), local(kO, 0));
  repeat(leaf, 3, copy_unit);
  return builder.plan;
}

// A signal an iteration over `chunks` chunks, in one loop or in a loop for each chunk.
Plan signal_each(std::int32_t chunks, bool one_loop) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, chunks, chunks, chunks);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  greet(root, leaf);
  const std::int32_t size = one_loop ? chunks : 1;
  for (std::int32_t chunk = 0; chunk < chunks; chunk += size) {
    const std::size_t at_root = root.operations().size();
    root.put(1, local(kI, chunk, size), kS, chunk).copy(local(kI, chunk, size), local(kO, chunk, size)).nop().signal(1);
    repeat(root, at_root, kUnit, size);
    const std::size_t at_leaf = leaf.operations().size();
    leaf.wait(0).nop().copy(local(kS, chunk, size), local(kO, chunk, size));
    repeat(leaf, at_leaf, kUnit, size);
  }
  return builder.plan;
}

// One operation on a pair of a chunk and on a pair of two, in a loop over two or all at once.
Plan uneven_pairs(ChannelKind channel, bool in_loop) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 3, 3, 0);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  greet(root, leaf);
  root.copy(local(kI, 0, 3), local(kO, 0, 3));
  const std::size_t at_root = root.operations().size();
  Operation put;
  put.kind = OpKind::kPut;
  put.channel = channel;
  put.sources = {local(kI, 0), local(kI, 1, 2)};
  put.destinations = {root.remote(channel, 1, kO, 0), root.remote(channel, 1, kO, 1, 2)};
  if (channel != kMemory) put.channel_ids.assign(2, root.channel(channel, 1));
  root.add(put);
  channel == kMemory ? root.nop().signal(1) : root.nop().port_signal(1);
  if (in_loop) repeat(root, at_root, kUnit, 2);
  if (channel != kMemory) root.flush(1);
  const std::size_t at_leaf = leaf.operations().size();
  channel == kMemory ? leaf.wait(0) : leaf.port_wait(0);
  if (in_loop) repeat(leaf, at_leaf, kUnit, 2);
  return builder.plan;
}

// At the leaf one thread block waits and another copies; a semaphore passes each iteration on.
Plan two_stages(bool double_scratch, std::int32_t chunks) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, chunks, chunks, chunks);
  builder.plan.double_scratch = double_scratch;
  builder.plan.ranks[1].semaphores = {0};
  const auto root = builder.at(0);
  const auto first = builder.at(1, 0);
  const auto second = builder.at(1, 1);
  greet(root, first);
  root.put(1, local(kI, 0, chunks), kS, 0).copy(local(kI, 0, chunks), local(kO, 0, chunks)).nop().signal(1);
  repeat(root, 2, kUnit, chunks);
  first.wait(0).nop().release(0);
  repeat(first, 1, kUnit, chunks);
  second.acquire(0).nop().copy(local(kS, 0, chunks), local(kO, 0, chunks)).nop();
  repeat(second, 0, kUnit, chunks);
  return builder.plan;
}

// Two thread blocks meet at a barrier in every iteration.
Plan barrier_each(std::int32_t chunks) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, chunks, chunks, chunks);
  const auto first = builder.at(0, 0);
  const auto second = builder.at(0, 1);
  first.copy(local(kI, 0, chunks), local(kS, 0, chunks)).barrier(0, 2);
  repeat(first, 0, kUnit, chunks);
  second.barrier(0, 2).copy(local(kS, 0, chunks), local(kO, 0, chunks));
  repeat(second, 0, kUnit, chunks);
  return builder.plan;
}

// Straight into the output, through a port; a flush at the end, or in every iteration.
Plan port_each(OpKind kind) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 0);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  leaf.port_signal(0);
  root.port_wait(1).nop();
  root.put_port(kind, 1, local(kI, 0), kO, 0).copy(local(kI, 0), local(kO, 0));
  repeat(root, 2, kUnit);
  if (kind == OpKind::kPutWithSignal) root.flush(1);
  leaf.port_wait(0);
  repeat(leaf, 1, kUnit);
  return builder.plan;
}

// Through a port into a ring of scratch; the leaf lets the root run `ahead` iterations ahead.
Plan port_ring_of_scratch(int ahead, std::int64_t unit) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 1);
  builder.plan.reuse_resources = true;
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  for (int i = 0; i < ahead; ++i) leaf.signal(0, 0, kRelaxedSignal);
  root.wait(1, 0, kRelaxedWait).nop();
  root.put_port(OpKind::kPutWithSignalAndFlush, 1, local(kI, 0), kS, 0).copy(local(kI, 0), local(kO, 0));
  repeat(root, 0, unit);
  for (int i = 0; i < ahead; ++i) root.wait(1, 0, kRelaxedWait);
  leaf.port_wait(0).nop().copy(local(kS, 0), local(kO, 0)).nop().signal(0, 0, kRelaxedSignal);
  repeat(leaf, static_cast<std::size_t>(ahead), unit);
  return builder.plan;
}

// Two thread blocks over a ring of scratch that holds as many units as there are credits.
Plan credits(std::int32_t count, std::int64_t unit) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
  builder.plan.reuse_resources = true;
  builder.plan.ranks[0].semaphores = {0, count};
  const auto first = builder.at(0, 0);
  const auto second = builder.at(0, 1);
  first.acquire(1).nop().copy(local(kI, 0), local(kS, 0)).nop().release(0);
  repeat(first, 0, unit);
  second.acquire(0).nop().copy(local(kS, 0), local(kO, 0)).nop().release(1);
  repeat(second, 0, unit);
  return builder.plan;
}

// Each iteration is an all-reduce of its own, over scratch that wraps.
Plan all_reduce_each(bool reuse) {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 1, 1, 1);
  builder.plan.reuse_resources = reuse;
  for (int r = 0; r < 2; ++r) {
    const auto block = builder.at(r);
    block.signal(1 - r, 0, kRelaxedSignal).wait(1 - r, 0, kRelaxedWait).nop();
    block.put(1 - r, local(kI, 0), kS, 0).nop().signal(1 - r).wait(1 - r).nop();
    block.move(OpKind::kReduce, {local(kS, 0), local(kI, 0)}, {local(kO, 0)}).nop();
    repeat(block, 0, kUnit);
  }
  return builder.plan;
}

// Reads the other's input in a loop, and adds in one of twice the unit.
Plan get_then_add() {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 1, 1, 1);
  for (int r = 0; r < 2; ++r) {
    const auto block = builder.at(r);
    block.signal(1 - r, 0, kRelaxedSignal).wait(1 - r, 0, kRelaxedWait).nop();
    block.move_memory(OpKind::kGet, {block.remote(kMemory, 1 - r, kI, 0)}, {local(kS, 0)});
    repeat(block, 3, kUnit);
    block.nop();
    block.move(OpKind::kReduce, {local(kS, 0), local(kI, 0)}, {local(kO, 0)});
    repeat(block, 5, 2 * kUnit);
    block.nop().signal(1 - r, 0, kRelaxedSignal).wait(1 - r, 0, kRelaxedWait);
  }
  return builder.plan;
}

// Two thread blocks share a port, in the order that a semaphore gives them; the second signals for both.
Plan shared_port_in_turn() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 2, 2, 0);
  builder.plan.ranks[0].semaphores = {0};
  const auto first = builder.at(0, 0);
  const auto second = builder.at(0, 1);
  const auto leaf = builder.at(1);
  leaf.port_signal(0);
  first.port_wait(1).nop().put_port(OpKind::kPut, 1, local(kI, 0), kO, 0).nop().release(0);
  first.copy(local(kI, 0), local(kO, 0)).flush(1);
  second.acquire(0).nop().put_port(OpKind::kPutWithSignalAndFlush, 1, local(kI, 1), kO, 1);
  second.copy(local(kI, 1), local(kO, 1));
  leaf.port_wait(0);
  return builder.plan;
}

// One thread block adds what comes in packets, the other passes the sum on: a semaphore at each rank, packets between.
Plan packets_and_semaphores(int ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 2 * ranks);
  builder.plan.double_scratch = true;
  for (int r = 0; r < ranks; ++r) {
    builder.plan.ranks[static_cast<std::size_t>(r)].semaphores = {0};
    const auto adds = builder.at(r, 0);
    const auto passes = builder.at(r, 1);
    std::vector<Operand> sources{local(kI, r)};
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      adds.move_memory(OpKind::kPutPackets, {local(kI, peer)}, {adds.remote(kMemory, peer, kS, r)});
      sources.push_back(local(kS, peer));
    }
    adds.move(OpKind::kReducePackets, sources, {local(kO, r)}).nop().release(0);
    passes.acquire(0).nop();
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      passes.move_memory(OpKind::kPutPackets, {local(kO, r)}, {passes.remote(kMemory, peer, kS, ranks + r)});
      passes.move(OpKind::kUnpackPackets, {local(kS, ranks + peer)}, {local(kO, peer)});
    }
  }
  return builder.plan;
}

// A reduction along a chain of three in a loop over a ring of scratch, each rank a credit ahead of the next.
Plan chain_of_three(bool double_scratch) {
  constexpr int kRanks = 3;
  PlanBuilder builder(PlanCollective::kReduce, kRanks, 1, 1, 1);
  builder.plan.root = kRanks - 1;
  builder.plan.reuse_resources = true;
  builder.plan.double_scratch = double_scratch;
  for (int r = 0; r < kRanks; ++r) {
    const auto block = builder.at(r);
    const bool first = r == 0;
    const bool last = r + 1 == kRanks;
    if (!first) block.signal(r - 1, 0, kRelaxedSignal);
    const std::size_t begin = block.operations().size();
    if (!first) block.wait(r - 1).nop();
    if (!last) block.wait(r + 1, 0, kRelaxedWait).nop();
    std::vector<Operand> sources{local(kI, 0)};
    if (!first) sources.push_back(local(kS, 0));
    if (first) {
      block.put(r + 1, local(kI, 0), kS, 0);
    } else if (last) {
      block.move(OpKind::kReduce, sources, {local(kO, 0)});
    } else {
      block.move(OpKind::kReduce, sources, {local(kO, 0)}).nop().put(r + 1, local(kO, 0), kS, 0);
    }
    block.nop();
    if (!last) block.signal(r + 1);
    if (!first) block.signal(r - 1, 0, kRelaxedSignal);
    repeat(block, begin, kUnit);
    if (!last) block.wait(r + 1, 0, kRelaxedWait);
  }
  return builder.plan;
}

}  // namespace

std::vector<BasePlan> plans_with_loops() {
  return {{"loop_end", signal_at_the_end(kUnit, kUnit)},
          {"loop_end_wide", signal_at_the_end(kUnit, 2 * kUnit)},
          {"loop_end_narrow", signal_at_the_end(2 * kUnit, kUnit)},
          {"loop_each", signal_each(1, true)},
          {"loop_over_two", signal_each(2, true)},
          {"loop_after_loop", signal_each(2, false)},
          {"pairs", uneven_pairs(kMemory, false)},
          {"pairs_port", uneven_pairs(ChannelKind::kPort, false)},
          {"loop_pairs", uneven_pairs(kMemory, true)},
          {"loop_pairs_port", uneven_pairs(ChannelKind::kPort, true)},
          {"loop_stages", two_stages(false, 1)},
          {"loop_stages_double", two_stages(true, 1)},
          {"loop_stages_over_two", two_stages(false, 2)},
          {"loop_barrier", barrier_each(1)},
          {"loop_barrier_over_two", barrier_each(2)},
          {"loop_port", port_each(OpKind::kPutWithSignal)},
          {"loop_port_flush", port_each(OpKind::kPutWithSignalAndFlush)},
          {"loop_port_ring_1", port_ring_of_scratch(1, 2 * kUnit)},
          {"loop_port_ring_2", port_ring_of_scratch(2, kUnit)},
          {"loop_credits_1", credits(1, 2 * kUnit)},
          {"loop_credits_2", credits(2, kUnit)},
          {"loop_credits_fewer", credits(1, kUnit)},
          {"loop_all_reduce", all_reduce_each(false)},
          {"loop_all_reduce_ring", all_reduce_each(true)},
          {"loop_get", get_then_add()},
          {"loop_chain", chain_of_three(false)},
          {"loop_chain_double", chain_of_three(true)},
          {"mixed_port", shared_port_in_turn()},
          {"mixed_packets_2", packets_and_semaphores(2)},
          {"mixed_packets_3", packets_and_semaphores(3)}};
}

}  // namespace tutti::plan::explorer
