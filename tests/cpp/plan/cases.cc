#include "plan/cases.h"

#include <utility>

#include "plan/plan_builder.h"

namespace tutti::plan {
namespace {

constexpr auto kMemory = ChannelKind::kMemory;
constexpr auto kRelaxedSignal = OpKind::kRelaxedSignal;
constexpr auto kRelaxedWait = OpKind::kRelaxedWait;

// Broadcast from rank 0 to rank 1 through memory; `change` may leave something out.
struct Handshake {
  bool ready = true;  // rank 1 says that its output may be written
  bool nop = true;    // joins the lanes before the signal
  OpKind done = OpKind::kSignal;
  OpKind seen = OpKind::kWait;
  bool wait = true;
};

Plan broadcast(const Handshake& h) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 0);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  if (h.ready) {
    root.wait(1, 0, kRelaxedWait).nop();
    leaf.signal(0, 0, kRelaxedSignal);
  }
  root.put(1, local(kI, 0), kO, 0);
  root.copy(local(kI, 0), local(kO, 0));
  if (h.nop) root.nop();
  root.signal(1, 0, h.done);
  if (h.wait) leaf.wait(0, 0, h.seen);
  return builder.plan;
}

Plan port_send(bool flush) {
  PlanBuilder builder(PlanCollective::kSendRecv, 2, 1, 1, 0);
  for (int r = 0; r < 2; ++r) {
    const auto block = builder.at(r);
    block.port_signal(1 - r).port_wait(1 - r);
    block.put_port(OpKind::kPutWithSignal, 1 - r, local(kI, 0), kO, 0).port_wait(1 - r);
    if (flush) block.flush(1 - r);
  }
  return builder.plan;
}

// Two thread blocks use one port channel, and nothing orders them: one sends the other half, or flushes what the first
// sends.
Plan shared_port(bool sends) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 2, 2, 0);
  const auto root = builder.at(0);
  const auto beside = builder.at(0, 1);
  const auto leaf = builder.at(1);
  leaf.port_signal(0).port_wait(0);
  root.port_wait(1).nop().copy(local(kI, 0, 2), local(kO, 0, 2));
  if (sends) {
    beside.put_port(OpKind::kPut, 1, local(kI, 1), kO, 1);
    root.put_port(OpKind::kPutWithSignalAndFlush, 1, local(kI, 0), kO, 0);
    beside.flush(1);
  } else {
    root.put_port(OpKind::kPutWithSignal, 1, local(kI, 0, 2), kO, 0);
    beside.flush(1);
  }
  return builder.plan;
}

// Two packets in one transfer, of which the receiver awaits the first: the second may come after it has gone on.
Plan half_awaited() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 3);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  root.wait(1, 0, kRelaxedWait).nop().copy(local(kI, 0), local(kO, 0));
  root.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, 0)});
  root.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, 1)}).nop();
  root.put_port(OpKind::kPutPackets, 1, local(kS, 0, 2), kS, 0).flush(1);
  leaf.signal(0, 0, kRelaxedSignal).move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, 2)});
  leaf.move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 0)});
  return builder.plan;
}

// What rank 1 stores for itself alone may land after rank 0's next packets, which lie elsewhere in another message.
Plan own_packets_in_flight() {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 1, 1, 2);
  const auto first = builder.at(0);
  const auto second = builder.at(1);
  first.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {first.remote(kMemory, 1, kS, 0)}).nop();
  first.move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 0)});
  second.move(OpKind::kReduceCopyPackets, {local(kI, 0), local(kS, 0)}, {local(kO, 0), local(kS, 1)});
  second.move_memory(OpKind::kReadPutPackets, {local(kS, 1)}, {second.remote(kMemory, 0, kS, 0)});
  return builder.plan;
}

// Plain data, then a packet through another thread block's slot as the only sign that the data are there.
Plan packet_fence() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 2, 2, 2);
  builder.plan.double_scratch = true;
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  root.wait(1, 0, kRelaxedWait).nop();
  leaf.signal(0, 0, kRelaxedSignal);
  root.put(1, local(kI, 0), kO, 0).copy(local(kI, 0, 2), local(kO, 0, 2)).nop();
  root.move_memory(OpKind::kPutPackets, {local(kI, 1)}, {root.remote(ChannelKind::kMemory, 1, kS, 0)});
  leaf.move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 1)});
  return builder.plan;
}

Plan semaphores(std::int32_t initial, bool release) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
  builder.plan.ranks[0].semaphores = {initial};
  builder.at(0, 1);
  builder.at(0).copy(local(kI, 0), local(kS, 0)).nop();
  if (release) builder.at(0).release(0);
  builder.at(0, 1).acquire(0).nop().copy(local(kS, 0), local(kO, 0));
  return builder.plan;
}

// Two stages of a loop over a ring of scratch; `credits` bound how far the first runs ahead.
Plan pipelined(std::int32_t credits, bool reuse) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
  builder.plan.reuse_resources = reuse;
  builder.plan.ranks[0].semaphores = {0, credits};
  builder.at(0, 1);
  const auto stage = [](int block, int from, int to, Operand source, Operand destination) {
    PlanBuilder inner(PlanCollective::kBroadcast, 1, 1, 1, 1);
    const auto body = inner.at(0, block);
    if (from >= 0) body.acquire(from).nop();
    body.copy(source, destination).nop();
    if (to >= 0) body.release(to);
    return loop_of(1, inner.plan.ranks[0].blocks[static_cast<std::size_t>(block)].operations);
  };
  builder.at(0, 0).add(stage(0, credits > 0 ? 1 : -1, 0, local(kI, 0), local(kS, 0)));
  builder.at(0, 1).add(stage(1, 0, credits > 0 ? 1 : -1, local(kS, 0), local(kO, 0)));
  if (credits == 0) builder.plan.ranks[0].semaphores = {0};
  return builder.plan;
}

Plan grouped(std::int32_t parts, std::int32_t made) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 3, 3, 0);
  for (std::int32_t i = 0; i < made; ++i) {
    Operation op;
    op.kind = OpKind::kCopy;
    op.sources = {local(kI, 0, 3)};
    op.destinations = {local(kO, 0, 3)};
    op.part = GroupPart{i, parts};
    builder.at(0, i).add(op);
  }
  return builder.plan;
}

Plan multicast(bool sync) {
  PlanBuilder builder(PlanCollective::kAllReduce, 3, 3, 3, 0);
  builder.plan.in_place = true;
  for (int r = 0; r < 3; ++r) {
    const auto block = builder.at(r);
    const auto meet = [&](OpKind signal, OpKind wait) {
      for (int peer = 0; peer < 3; ++peer) {
        if (peer != r) block.signal(peer, 0, signal);
      }
      for (int peer = 0; peer < 3; ++peer) {
        if (peer != r) block.wait(peer, 0, wait);
      }
      block.nop();
    };
    if (sync) meet(kRelaxedSignal, kRelaxedWait);
    Operation op;
    op.kind = OpKind::kGroupLoadReduceStore;
    op.channel = ChannelKind::kSwitch;
    op.sources = {block.group(kI, r)};
    op.destinations = {block.group(kI, r)};
    block.add(op);
    block.nop();
    meet(OpKind::kSignal, OpKind::kWait);
  }
  return builder.plan;
}

Plan wrong_deadlock() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 0);
  for (int r = 0; r < 2; ++r) builder.at(r).wait(1 - r).signal(1 - r);
  return builder.plan;
}

Plan wrong_result(bool twice) {
  Plan plan = packet_all_reduce(3);
  auto& sources = plan.ranks[1].blocks[0].operations.back().sources;
  if (twice) {
    sources.push_back(sources.back());
  } else {
    sources.pop_back();
  }
  return plan;
}

// Chunk 1 of a block travels through chunk 2 of the output, which is shorter.
Plan wrong_length() {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 3, 3, 0);
  builder.at(0).copy(local(kI, 1), local(kO, 2)).nop().copy(local(kO, 2), local(kO, 1)).nop();
  builder.at(0).copy(local(kI, 0), local(kO, 0)).copy(local(kI, 2), local(kO, 2));
  return builder.plan;
}

Plan wrong_mix() {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 1, 1, 1);
  builder.at(0).move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, 0)});
  builder.at(0).move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 0)}).nop();
  builder.at(0).copy(local(kI, 0), local(kS, 0));
  return builder.plan;
}

Plan single_scratch(Plan plan) {
  plan.double_scratch = false;
  return plan;
}

}  // namespace

std::vector<Case> right_cases() {
  std::vector<Case> cases;
  const auto add = [&cases](std::string name, Plan plan) {
    cases.push_back({.name = std::move(name), .plan = std::move(plan)});
  };
  for (const std::int32_t ranks : {1, 2, 3, 7, 8}) {
    const std::string n = std::to_string(ranks);
    if (ranks > 1) add("ring_" + n, ring_all_reduce(ranks));
    add("all_pairs_" + n, all_pairs_all_gather(ranks));
    if (ranks > 1) add("packets_" + n, packet_all_reduce(ranks));
    add("tree_" + n, tree_all_reduce(ranks));
  }
  for (const std::int32_t ranks : {2, 4, 8}) add("doubling_" + std::to_string(ranks), doubling_all_reduce(ranks));
  add("handshake", broadcast({}));
  add("port", port_send(true));
  add("semaphore", semaphores(0, true));
  add("credits", pipelined(2, true));
  add("long_scratch", pipelined(0, false));
  add("group", grouped(4, 4));
  add("multicast", multicast(true));
  return cases;
}

std::vector<Case> repairable_cases() {
  constexpr auto kRepaired = Outcome::kProvenAfterRepair;
  Handshake relaxed;
  relaxed.done = kRelaxedSignal;
  relaxed.seen = kRelaxedWait;
  Handshake half;
  half.seen = kRelaxedWait;
  return {{"relaxed", broadcast(relaxed), kRepaired, FaultKind::kRace, "nothing makes its data visible"},
          {"half_relaxed", broadcast(half), kRepaired, FaultKind::kRace, "nothing makes its data visible"},
          {"unflushed", port_send(false), kRepaired, FaultKind::kRace, "the caller of rank 0 overwrites"},
          {"flushed_beside", shared_port(false), kRepaired, FaultKind::kRace, "the caller of rank 0 overwrites"},
          {"own_in_flight", own_packets_in_flight(), kRepaired, FaultKind::kRace, "scratch"},
          {"packet_fence", packet_fence(), kRepaired, FaultKind::kRace, "nothing makes its data visible"},
          {"no_credits", pipelined(0, true), kRepaired, FaultKind::kRace, "iteration"}};
}

std::vector<Case> wrong_cases() {
  constexpr auto kRejected = Outcome::kRejected;
  Handshake no_ready;
  no_ready.ready = false;
  Handshake no_nop;
  no_nop.nop = false;
  Handshake no_wait;
  no_wait.wait = false;
  return {
      {"not_ready", broadcast(no_ready), kRejected, FaultKind::kRace, "the caller of rank 1"},
      {"lanes_not_joined", broadcast(no_nop), kRejected, FaultKind::kRace, "nothing orders the write before the read"},
      {"not_waited", broadcast(no_wait), kRejected, FaultKind::kWrongResult, "nothing was written there"},
      {"waits_first", wrong_deadlock(), kRejected, FaultKind::kDeadlock, "these wait for each other"},
      {"never_released", semaphores(0, false), kRejected, FaultKind::kDeadlock, "never comes: rank 0, thread block 1"},
      {"one_too_many", semaphores(1, true), kRejected, FaultKind::kRace, ""},
      {"part_missing", grouped(4, 3), kRejected, FaultKind::kWrongResult, "nothing was written there"},
      {"multicast_unsynchronised", multicast(false), kRejected, FaultKind::kRace, "glres"},
      {"one_left_out", wrong_result(false), kRejected, FaultKind::kWrongResult, "rank 2's is missing"},
      {"one_twice", wrong_result(true), kRejected, FaultKind::kWrongResult, "or of one twice"},
      {"too_short", wrong_length(), kRejected, FaultKind::kLostData, "passes through chunk 2"},
      {"sent_beside", shared_port(true), kRejected, FaultKind::kRace, "rank 1"},
      {"half_awaited", half_awaited(), kRejected, FaultKind::kRace, "scratch"},
      {"mixed_scratch", wrong_mix(), kRejected, FaultKind::kPackets, "as plain data"},
      {"packets_single_scratch", single_scratch(packet_all_reduce(2)), kRejected, FaultKind::kRace, "scratch"},
  };
}

}  // namespace tutti::plan
