#include "plan/explorer/base_plans.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "plan/cases.h"
#include "plan/explorer/loop_plans.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"

namespace tutti::plan::explorer {
namespace {

constexpr auto kMemory = ChannelKind::kMemory;
constexpr auto kPort = ChannelKind::kPort;
constexpr auto kRelaxedSignal = OpKind::kRelaxedSignal;
constexpr auto kRelaxedWait = OpKind::kRelaxedWait;

using At = PlanBuilder::Block;

// "I am here" to all others, and theirs to this rank.
void meet(const At& block, int rank, int ranks, OpKind signal, OpKind wait) {
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) block.signal(peer, 0, signal);
  }
  for (int peer = 0; peer < ranks; ++peer) {
    if (peer != rank) block.wait(peer, 0, wait);
  }
  block.nop();
}

// All-gather through ports; `kind` is the put, with what it lacks of a signal and a flush after it.
Plan port_all_gather(int ranks, OpKind kind) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != r) block.port_signal(peer);
    }
    block.copy(local(kI, 0), local(kO, r));
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.port_wait(peer).nop().put_port(kind, peer, local(kI, 0), kO, r);
      if (kind == OpKind::kPut) block.port_signal(peer);
    }
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.port_wait(peer);
      if (kind != OpKind::kPutWithSignalAndFlush) block.flush(peer);
    }
  }
  return builder.plan;
}

// Each rank passes what it has received on to the next, through ports.
Plan port_ring(int ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    const int next = (r + 1) % ranks;
    const int before = (r + ranks - 1) % ranks;
    block.port_signal(before).port_wait(next).copy(local(kI, 0), local(kO, r)).nop();
    for (int step = 0; step + 1 < ranks; ++step) {
      const int chunk = (r + ranks - step) % ranks;
      block.put_port(OpKind::kPutWithSignal, next, local(kO, chunk), kO, chunk).port_wait(before).nop();
    }
    block.flush(next);
  }
  return builder.plan;
}

// Rank 0 sends two lists of two chunks through the same scratch, one after the other; the second overtakes nothing.
Plan port_lists() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 4, 4, 2);
  const auto root = builder.at(0);
  const auto leaf = builder.at(1);
  root.copy(local(kI, 0, 4), local(kO, 0, 4));
  leaf.port_signal(0);
  for (const int first : {0, 2}) {
    root.port_wait(1).nop().put_port(OpKind::kPut, 1, local(kI, first), kS, 0);
    Operation& list = root.operations().back();
    list.sources.push_back(local(kI, first + 1));
    list.destinations.push_back(root.remote(kPort, 1, kS, 1));
    list.channel_ids.push_back(list.channel_ids[0]);
    root.nop().port_signal(1).flush(1);
    leaf.port_wait(0).nop().copy(local(kS, 0, 2), local(kO, first, 2)).nop();
    if (first == 0) leaf.port_signal(0);
  }
  return builder.plan;
}

// Packets made in scratch and sent by the proxy, after a look at them (rppkt) or without one.
Plan port_packets(int ranks, bool looks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, ranks);
  builder.plan.double_scratch = true;
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)});
    if (!looks) block.nop();
    std::vector<Operand> sources{local(kI, 0)};
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.put_port(looks ? OpKind::kReadPutPackets : OpKind::kPutPackets, peer, local(kS, r), kS, r);
      sources.push_back(local(kS, peer));
    }
    block.move(OpKind::kReducePackets, sources, {local(kO, 0)});
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != r) block.flush(peer);
    }
  }
  return builder.plan;
}

// Everybody reads everybody's input.
Plan get_all_gather(int ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet(block, r, ranks, kRelaxedSignal, kRelaxedWait);
    block.copy(local(kI, 0), local(kO, r));
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != r) block.move_memory(OpKind::kGet, {block.remote(kMemory, peer, kI, 0)}, {local(kO, peer)});
    }
    block.nop();
    meet(block, r, ranks, kRelaxedSignal, kRelaxedWait);
  }
  return builder.plan;
}

// Reads the others' inputs and adds; `sends`: each rank one chunk, which it also writes to the others.
Plan read_reduce(int ranks, bool sends) {
  PlanBuilder builder(sends ? PlanCollective::kAllReduce : PlanCollective::kReduceScatter, ranks, ranks,
                      sends ? ranks : 1, 0);
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet(block, r, ranks, kRelaxedSignal, kRelaxedWait);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, sends ? r : 0)};
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      sources.push_back(block.remote(kMemory, peer, kI, r));
      if (sends) targets.push_back(block.remote(kMemory, peer, kO, r));
    }
    block.move_memory(sends ? OpKind::kReadReduceSend : OpKind::kReadReduce, sources, targets).nop();
    meet(block, r, ranks, sends ? OpKind::kSignal : kRelaxedSignal, sends ? OpKind::kWait : kRelaxedWait);
  }
  return builder.plan;
}

// Chunks are put into scratch, and their owner sends the sum while it computes it.
Plan reduce_send(int ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, ranks);
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet(block, r, ranks, kRelaxedSignal, kRelaxedWait);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, r)};
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.put(peer, local(kI, peer), kS, r);
      sources.push_back(local(kS, peer));
      targets.push_back(block.remote(kMemory, peer, kO, r));
    }
    block.nop();
    meet(block, r, ranks, OpKind::kSignal, OpKind::kWait);
    block.move_memory(OpKind::kReduceSend, sources, targets).nop();
    meet(block, r, ranks, OpKind::kSignal, OpKind::kWait);
  }
  return builder.plan;
}

// Two shots in packets: scatter, add and send on, unpack. `copies`: the sum also becomes packets of this rank.
Plan packet_two_shot(int ranks, bool copies) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 2 * ranks);
  builder.plan.double_scratch = true;
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, r)};
    if (copies) targets.push_back(local(kS, ranks + r));
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer == r) continue;
      block.move_memory(OpKind::kPutPackets, {local(kI, peer)}, {block.remote(kMemory, peer, kS, r)});
      sources.push_back(local(kS, peer));
      targets.push_back(block.remote(kMemory, peer, kS, ranks + r));
    }
    block.move_memory(copies ? OpKind::kReduceCopySendPackets : OpKind::kReduceSendPackets, sources, targets);
    for (int peer = 0; peer < ranks; ++peer) {
      if (peer != r) block.move(OpKind::kUnpackPackets, {local(kS, ranks + peer)}, {local(kO, peer)});
    }
  }
  return builder.plan;
}

// Along a chain and back: packets are passed on as they are (rppkt), or with this rank's part (recpkt, then rppkt).
Plan packet_chain(int ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, 3);
  builder.plan.double_scratch = true;
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    const int last = ranks - 1;
    const auto slot = [&block](int peer, int index) { return block.remote(kMemory, peer, kS, index); };
    if (r == 0) {
      block.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {slot(1, 0)});
    } else {
      block.move(OpKind::kReduceCopyPackets, {local(kI, 0), local(kS, 0)}, {local(kO, 0), local(kS, 1)});
      if (r < last) {
        block.move_memory(OpKind::kReadPutPackets, {local(kS, 1)}, {slot(r + 1, 0)});
      } else {
        block.move_memory(OpKind::kReadPutPackets, {local(kS, 1)}, {slot(r - 1, 2)});
      }
    }
    if (r == last) continue;
    if (r > 0) block.move_memory(OpKind::kReadPutPackets, {local(kS, 2)}, {slot(r - 1, 2)});
    block.nop().move(OpKind::kUnpackPackets, {local(kS, 2)}, {local(kO, 0)});
  }
  return builder.plan;
}

Operation through_group(OpKind kind, Operand source, Operand target) {
  Operation op;
  op.kind = kind;
  op.channel = ChannelKind::kSwitch;
  op.sources = {source};
  op.destinations = {target};
  return op;
}

// Over a multicast group of the input: load-reduce and store in one operation, or in two.
Plan multicast_all_reduce(int ranks, bool in_one) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, in_one ? 0 : 1);
  builder.plan.in_place = true;
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet(block, r, ranks, kRelaxedSignal, kRelaxedWait);
    if (in_one) {
      block.add(through_group(OpKind::kGroupLoadReduceStore, block.group(kI, r), block.group(kI, r)));
    } else {
      block.add(through_group(OpKind::kGroupLoadReduce, block.group(kI, r), local(kS, 0)));
      block.add(through_group(OpKind::kGroupStore, local(kS, 0), block.group(kI, r)));
    }
    block.nop();
    meet(block, r, ranks, OpKind::kSignal, OpKind::kWait);
  }
  return builder.plan;
}

// Packets to all of a group at once.
Plan multicast_packets(int ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 2 * ranks);
  builder.plan.double_scratch = true;
  for (int r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)});
    block.add(through_group(OpKind::kGroupStorePackets, local(kS, r), block.group(kS, ranks + r)));
    for (int from = 0; from < ranks; ++from) {
      block.move(OpKind::kUnpackPackets, {local(kS, ranks + from)}, {local(kO, from)});
    }
  }
  return builder.plan;
}

// Two thread blocks at the receiver: one learns that data have come, the other copies them; they meet at the end.
Plan two_blocks(bool credit) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 1);
  builder.plan.ranks[1].semaphores = credit ? std::vector<std::int32_t>{0, 1} : std::vector<std::int32_t>{0};
  const auto root = builder.at(0);
  root.wait(1, 0, kRelaxedWait).nop().put(1, local(kI, 0), kS, 0).copy(local(kI, 0), local(kO, 0)).nop().signal(1);
  const auto first = builder.at(1, 0);
  const auto second = builder.at(1, 1);
  if (credit) first.acquire(1);
  first.signal(0, 0, kRelaxedSignal).wait(0).nop().release(0);
  second.acquire(0).nop().copy(local(kS, 0), local(kO, 0)).nop();
  if (credit) second.release(1);
  first.barrier(0, 2);
  second.barrier(0, 2);
  return builder.plan;
}

// A broadcast in a loop over a ring of scratch; the reader lets the writer run two units ahead.
Plan loop_with_credits() {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 1, 1, 1);
  builder.plan.reuse_resources = true;
  const auto in_loop = [](const At& block, std::size_t first) {
    Operation loop;
    loop.kind = OpKind::kPipeline;
    loop.iteration = {1 << 20, 1};
    auto& all = block.operations();
    loop.body.assign(all.begin() + static_cast<std::ptrdiff_t>(first), all.end());
    all.resize(first);
    block.add(std::move(loop));
  };
  const auto root = builder.at(0);
  root.wait(1, 0, kRelaxedWait).nop().put(1, local(kI, 0), kS, 0).copy(local(kI, 0), local(kO, 0)).nop().signal(1);
  in_loop(root, 0);
  root.wait(1, 0, kRelaxedWait).wait(1, 0, kRelaxedWait);
  const auto leaf = builder.at(1);
  leaf.signal(0, 0, kRelaxedSignal).signal(0, 0, kRelaxedSignal);
  leaf.wait(0).nop().copy(local(kS, 0), local(kO, 0)).nop().signal(0, 0, kRelaxedSignal);
  in_loop(leaf, 2);
  return builder.plan;
}

}  // namespace

std::vector<BasePlan> plans_by_hand() {
  std::vector<BasePlan> plans;
  for (Case& c : right_cases()) {
    const std::size_t ranks = c.plan.ranks.size();
    if (ranks <= 3 && c.name != "all_pairs_1" && c.name != "tree_1") plans.push_back({c.name, std::move(c.plan)});
  }
  const auto add = [&plans](std::string name, Plan plan) { plans.push_back({std::move(name), std::move(plan)}); };
  for (const int ranks : {2, 3}) {
    const std::string n = std::string("_").append(std::to_string(ranks));
    add("port_put" + n, port_all_gather(ranks, OpKind::kPut));
    add("port_pws" + n, port_all_gather(ranks, OpKind::kPutWithSignal));
    add("port_pwsf" + n, port_all_gather(ranks, OpKind::kPutWithSignalAndFlush));
    add("port_ring" + n, port_ring(ranks));
    add("port_packets" + n, port_packets(ranks, false));
    add("port_packets_read" + n, port_packets(ranks, true));
    add("port_packets_parts" + n, port_packets_in_parts(ranks));
    add("get" + n, get_all_gather(ranks));
    add("read_reduce" + n, read_reduce(ranks, false));
    add("read_reduce_send" + n, read_reduce(ranks, true));
    add("reduce_send" + n, reduce_send(ranks));
    add("packet_two_shot" + n, packet_two_shot(ranks, false));
    add("packet_two_shot_copy" + n, packet_two_shot(ranks, true));
    add("packet_chain" + n, packet_chain(ranks));
    add("multicast_one" + n, multicast_all_reduce(ranks, true));
    add("multicast_two" + n, multicast_all_reduce(ranks, false));
    add("multicast_packets" + n, multicast_packets(ranks));
  }
  add("port_lists", port_lists());
  add("two_blocks", two_blocks(false));
  add("two_blocks_credit", two_blocks(true));
  add("loop_with_credits", loop_with_credits());
  for (BasePlan& base : plans_with_loops()) plans.push_back(std::move(base));
  return plans;
}

std::vector<BasePlan> base_plans(const std::string& folder) {
  std::vector<BasePlan> programs;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream in(entry.path());
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    programs.push_back({entry.path().stem().string(), read_plan(text)});
  }
  std::sort(programs.begin(), programs.end(), [](const BasePlan& a, const BasePlan& b) { return a.name < b.name; });
  std::vector<BasePlan> plans = plans_by_hand();
  for (BasePlan& program : programs) plans.push_back(std::move(program));
  return plans;
}

}  // namespace tutti::plan::explorer
