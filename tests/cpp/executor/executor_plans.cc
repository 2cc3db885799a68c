#include "executor/executor_plans.h"

#include "executor/plan_parts.h"

namespace tutti::plan {
void meet_all(const PlanBuilder::Block& block, std::int32_t rank, std::int32_t ranks, int nth, OpKind signal,
              OpKind wait) {
  for_peers(rank, ranks, [&](std::int32_t peer) { block.signal(peer, nth, signal); });
  for_peers(rank, ranks, [&](std::int32_t peer) { block.wait(peer, nth, wait); });
  block.nop();
}

Operation through_switch(OpKind kind, std::vector<Operand> sources, std::vector<Operand> destinations) {
  Operation op;
  op.kind = kind;
  op.channel = ChannelKind::kSwitch;
  op.sources = std::move(sources);
  op.destinations = std::move(destinations);
  return op;
}

Plan two_step_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    builder.plan.ranks[r].semaphores = {0};
    const auto sender = builder.at(r, 0);
    const auto reducer = builder.at(r, 1);
    const auto gatherer = builder.at(r, 2);
    meet_all(sender, r, ranks, 0, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
    std::vector<Operand> sources{local(kI, r)};
    for_peers(r, ranks, [&](std::int32_t peer) { sender.put(peer, local(kI, peer), kS, r).nop().signal(peer, 1); });
    for_peers(r, ranks, [&](std::int32_t peer) {
      reducer.wait(peer, 1);
      sources.push_back(local(kS, peer));
    });
    reducer.nop();
    if (ranks == 1) {
      reducer.copy(local(kI, r), local(kO, r));
    } else {
      reducer.move(OpKind::kReduce, sources, {local(kO, r)});
    }
    reducer.nop().release(0);
    gatherer.acquire(0).nop();
    for_peers(r, ranks, [&](std::int32_t peer) { gatherer.put(peer, local(kO, r), kO, r).nop().signal(peer, 2); });
    for_peers(r, ranks, [&](std::int32_t peer) { gatherer.wait(peer, 2); });
    for (const auto& block : {sender, reducer, gatherer}) block.barrier(7, 3);
  }
  return finished(builder);
}

Plan packet_two_step_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 2 * ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (ranks == 1) {
      block.copy(local(kI, 0), local(kO, 0));
      continue;
    }
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, r)};
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.move_memory(OpKind::kPutPackets, {local(kI, peer)}, {block.remote(kMemory, peer, kS, r)});
      sources.push_back(local(kS, peer));
      targets.push_back(block.remote(kMemory, peer, kS, ranks + r));
    });
    block.move_memory(OpKind::kReduceSendPackets, sources, targets);
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.move(OpKind::kUnpackPackets, {local(kS, ranks + peer)}, {local(kO, peer)});
    });
  }
  return finished(builder);
}

Plan switch_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0);
    block.add(through_switch(OpKind::kGroupLoadReduceStore, {block.group(kI, r)}, {block.group(kO, r)}));
    block.nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan read_send_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, r)};
    for_peers(r, ranks, [&](std::int32_t peer) {
      sources.push_back(block.remote(kMemory, peer, kI, r));
      targets.push_back(block.remote(kMemory, peer, kO, r));
    });
    block.move_memory(OpKind::kReadReduceSend, sources, targets).nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan reduce_send_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> targets{local(kO, r)};
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.put(peer, local(kI, peer), kS, r);
      sources.push_back(local(kS, peer));
      targets.push_back(block.remote(kMemory, peer, kO, r));
    });
    block.nop();
    meet_all(block, r, ranks, 0);
    block.move_memory(OpKind::kReduceSend, sources, targets).nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan input_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, ranks);
  builder.plan.writes_input = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0);
    std::vector<Operand> sources{local(kI, r)};
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.put(peer, local(kI, peer), kS, r);
      sources.push_back(local(kS, peer));
    });
    block.nop();
    meet_all(block, r, ranks, 0);
    block.move(OpKind::kReduce, sources, {local(kI, r)}).nop().copy(local(kI, r), local(kO, r));
    for_peers(r, ranks, [&](std::int32_t peer) { block.put(peer, local(kI, r), kO, r); });
    block.nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan switch_through_scratch(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 1);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0);
    block.add(through_switch(OpKind::kGroupLoadReduce, {block.group(kI, r)}, {local(kS, 0)}));
    block.nop();
    block.add(through_switch(OpKind::kGroupStore, {local(kS, 0)}, {block.group(kO, r)}));
    block.nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan one_shot_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {block.remote(kMemory, peer, kS, r)});
    });
    block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)});
    block.move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 0)}).nop();
    std::vector<Operand> sources{local(kO, 0)};
    for (std::int32_t q = 1; q < ranks; ++q) sources.push_back(local(kS, q));
    block.move(OpKind::kReducePackets, sources, {local(kO, 0)});
  }
  return finished(builder);
}

Plan fenced_all_reduce() {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 1, 1, 3);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  const auto first = builder.at(0), second = builder.at(1);
  second.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {second.remote(kMemory, 0, kS, 0)});
  first.move_memory(OpKind::kPut, {local(kI, 0)}, {first.remote(kMemory, 1, kS, 1)}).nop();
  first.move_memory(OpKind::kReadPutPackets, {local(kS, 0)}, {first.remote(kMemory, 1, kS, 2)});
  builder.plan.ranks[0].blocks[0].operations.back().fence = true;
  first.move(OpKind::kReducePackets, {local(kI, 0), local(kS, 0)}, {local(kO, 0)});
  second.move(OpKind::kReducePackets, {local(kS, 1), local(kS, 2)}, {local(kO, 0)});
  builder.plan.ranks[1].blocks[0].operations.back().fence = true;
  return finished(builder);
}

Plan kept_packets_all_reduce(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, ranks, ranks, 2 * ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    std::vector<Operand> sources{local(kI, r)};
    std::vector<Operand> far;
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.move_memory(OpKind::kPutPackets, {local(kI, peer)}, {block.remote(kMemory, peer, kS, r)});
      sources.push_back(local(kS, peer));
      far.push_back(block.remote(kMemory, peer, kS, ranks + r));
    });
    std::vector<Operand> targets{local(kO, r), local(kS, ranks + r)};
    if (r == 0) {
      block.move(OpKind::kReduceCopyPackets, sources, targets);
      block.move_memory(OpKind::kReadPutPackets, {local(kS, ranks + r)}, far);
    } else {
      targets.insert(targets.end(), far.begin(), far.end());
      block.move_memory(OpKind::kReduceCopySendPackets, sources, targets);
    }
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.move(OpKind::kUnpackPackets, {local(kS, ranks + peer)}, {local(kO, peer)});
    });
  }
  return finished(builder);
}

Plan switch_packets_all_gather(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 2 * ranks);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)});
    block.add(through_switch(OpKind::kGroupStorePackets, {local(kS, r)}, {block.group(kS, ranks + r)}));
    for (std::int32_t q = 0; q < ranks; ++q) {
      block.move(OpKind::kUnpackPackets, {local(kS, ranks + q)}, {local(kO, q)});
    }
  }
  return finished(builder);
}

Plan port_all_gather(std::int32_t ranks, bool flushing) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 1);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
    block.copy(local(kI, 0), local(kS, 0)).copy(local(kI, 0), local(kO, r)).nop();
    for_peers(r, ranks, [&](std::int32_t peer) {
      if (flushing) {
        block.put_port(OpKind::kPutWithSignalAndFlush, peer, local(kS, 0), kO, r);
      } else if (peer % 2 == 0) {
        block.put_port(OpKind::kPut, peer, local(kS, 0), kO, r).port_signal(peer).flush(peer);
      } else {
        block.put_port(OpKind::kPutWithSignal, peer, local(kS, 0), kO, r);
      }
    });
    for_peers(r, ranks, [&](std::int32_t peer) { block.port_wait(peer); });
    for_peers(r, ranks, [&](std::int32_t peer) { block.flush(peer); });
  }
  return finished(builder);
}

Plan split_all_to_all(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllToAll, ranks, ranks, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    for (std::int32_t part = 0; part < 2; ++part) {
      const auto block = builder.at(r, part);
      meet_all(block, r, ranks, part);
      for_peers(r, ranks, [&](std::int32_t peer) {
        block.move_memory(OpKind::kGet, {block.remote(kMemory, peer, kI, r)}, {local(kO, peer)});
        builder.plan.ranks[r].blocks[part].operations.back().part = GroupPart{part, 2};
      });
      block.copy(local(kI, r), local(kO, r));
      builder.plan.ranks[r].blocks[part].operations.back().part = GroupPart{part, 2};
      block.nop();
      meet_all(block, r, ranks, part);
    }
  }
  return finished(builder);
}

Plan read_reduce_scatter(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kReduceScatter, ranks, ranks, 1, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (ranks == 1) {
      block.copy(local(kI, 0), local(kO, 0));
      continue;
    }
    meet_all(block, r, ranks, 0);
    std::vector<Operand> sources{local(kI, r)};
    for_peers(r, ranks, [&](std::int32_t peer) { sources.push_back(block.remote(kMemory, peer, kI, r)); });
    block.move_memory(OpKind::kReadReduce, sources, {local(kO, 0)}).nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan looped_all_reduce(std::int32_t ranks, std::int64_t unit) {
  PlanBuilder builder(PlanCollective::kAllReduce, ranks, 1, 1, ranks);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (ranks == 1) {
      block.copy(local(kI, 0), local(kO, 0));
      continue;
    }
    meet_all(block, r, ranks, 0, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
    Operation loop;
    loop.kind = OpKind::kPipeline;
    loop.iteration = {unit, 1};
    std::vector<Operand> sources{local(kI, 0)};
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.put(peer, local(kI, 0), kS, r).nop().signal(peer, 1);
      sources.push_back(local(kS, peer));
    });
    for_peers(r, ranks, [&](std::int32_t peer) { block.wait(peer, 1); });
    block.nop().move(OpKind::kReduce, sources, {local(kO, 0)});
    // What has been added since the meeting becomes the body.
    auto& operations = builder.plan.ranks[r].blocks[0].operations;
    const auto begin = operations.begin() + 2 * (ranks - 1) + 1;
    loop.body.assign(begin, operations.end());
    operations.erase(begin, operations.end());
    block.add(loop);
  }
  return finished(builder);
}

Plan in_place_all_gather(std::int32_t ranks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  builder.plan.in_place = true;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
    for_peers(r, ranks, [&](std::int32_t peer) { block.put(peer, local(kO, r), kO, r); });
    block.nop();
    meet_all(block, r, ranks, 0);
  }
  return finished(builder);
}

Plan put_broadcast(std::int32_t ranks, std::int32_t root) {
  PlanBuilder builder(PlanCollective::kBroadcast, ranks, 1, 1, 0);
  builder.plan.root = root;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (r != root) {
      block.signal(root, 0, OpKind::kRelaxedSignal).wait(root);
      continue;
    }
    for_peers(r, ranks, [&](std::int32_t peer) {
      block.wait(peer, 0, OpKind::kRelaxedWait).nop().put(peer, local(kI, 0), kO, 0).nop().signal(peer);
    });
    block.copy(local(kI, 0), local(kO, 0));
  }
  return finished(builder);
}

Plan put_gather(std::int32_t ranks, std::int32_t root) {
  PlanBuilder builder(PlanCollective::kGather, ranks, 1, ranks, 0);
  builder.plan.root = root;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (r == root) {
      for_peers(r, ranks, [&](std::int32_t peer) { block.signal(peer, 0, OpKind::kRelaxedSignal); });
      block.copy(local(kI, 0), local(kO, r));
      for_peers(r, ranks, [&](std::int32_t peer) { block.wait(peer); });
    } else {
      block.wait(root, 0, OpKind::kRelaxedWait).nop().put(root, local(kI, 0), kO, r).nop().signal(root);
    }
  }
  return finished(builder);
}

Plan get_scatter(std::int32_t ranks, std::int32_t root) {
  PlanBuilder builder(PlanCollective::kScatter, ranks, ranks, 1, 0);
  builder.plan.root = root;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (r == root) {
      for_peers(r, ranks, [&](std::int32_t peer) { block.signal(peer); });
      block.copy(local(kI, r), local(kO, 0));
      for_peers(r, ranks, [&](std::int32_t peer) { block.wait(peer); });
    } else {
      block.wait(root).nop();
      block.move_memory(OpKind::kGet, {block.remote(kMemory, root, kI, r)}, {local(kO, 0)}).nop().signal(root);
    }
  }
  return finished(builder);
}

Plan read_reduce(std::int32_t ranks, std::int32_t root) {
  PlanBuilder builder(PlanCollective::kReduce, ranks, 1, 1, 0);
  builder.plan.root = root;
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    if (ranks == 1) {
      block.copy(local(kI, 0), local(kO, 0));
    } else if (r == root) {
      std::vector<Operand> sources{local(kI, 0)};
      for_peers(r, ranks, [&](std::int32_t peer) {
        block.wait(peer);
        sources.push_back(block.remote(kMemory, peer, kI, 0));
      });
      block.nop().move_memory(OpKind::kReadReduce, sources, {local(kO, 0)}).nop();
      for_peers(r, ranks, [&](std::int32_t peer) { block.signal(peer); });
    } else {
      block.signal(root).wait(root);
    }
  }
  return finished(builder);
}

Plan wide_all_gather(std::int32_t ranks, std::int32_t blocks) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, 1, ranks, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    for (std::int32_t b = 0; b < blocks; ++b) {
      const auto block = builder.at(r, b);
      const auto in_part = [&] { block.operations().back().part = GroupPart{b, blocks}; };
      meet_all(block, r, ranks, b, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
      block.copy(local(kI, 0), local(kO, r));
      in_part();
      for_peers(r, ranks, [&](std::int32_t peer) {
        block.put(peer, local(kI, 0), kO, r);
        in_part();
      });
      block.nop();
      meet_all(block, r, ranks, b);
      block.barrier(1, blocks);
    }
  }
  return finished(builder);
}

Plan long_all_gather(std::int32_t ranks, std::int32_t puts, std::int32_t channels) {
  PlanBuilder builder(PlanCollective::kAllGather, ranks, puts, ranks * puts, 0);
  for (std::int32_t r = 0; r < ranks; ++r) {
    const auto block = builder.at(r);
    meet_all(block, r, ranks, 0, OpKind::kRelaxedSignal, OpKind::kRelaxedWait);
    for (std::int32_t k = 0; k < puts; ++k) {
      block.copy(local(kI, k), local(kO, r * puts + k));
      for_peers(r, ranks, [&](std::int32_t peer) {
        block.put(peer, local(kI, k), kO, r * puts + k).nop().signal(peer, 1 + k % channels);
      });
    }
    for (std::int32_t k = 0; k < puts; ++k) {
      for_peers(r, ranks, [&](std::int32_t peer) { block.wait(peer, 1 + k % channels); });
    }
    block.nop();
  }
  return finished(builder);
}

std::vector<NamedPlan> plans_of_every_operation(std::int32_t ranks, std::int64_t unit) {
  std::vector<NamedPlan> list;
  const auto add = [&list](std::string name, Plan made) {
    made.reduce = common_reduction(made);
    made.name = name;
    list.push_back({std::move(name), std::make_shared<Plan>(std::move(made))});
  };
  add("two_step", two_step_all_reduce(ranks));
  add("packet_two_step", packet_two_step_all_reduce(ranks));
  add("switch", switch_all_reduce(ranks));
  add("port", port_all_gather(ranks));
  add("port_flush", port_all_gather(ranks, true));
  add("split", split_all_to_all(ranks));
  add("read", read_reduce_scatter(ranks));
  add("loop", looped_all_reduce(ranks, unit));
  add("in_place", in_place_all_gather(ranks));
  add("broadcast", put_broadcast(ranks, ranks - 1));
  add("gather", put_gather(ranks, ranks - 1));
  add("scatter", get_scatter(ranks, 0));
  add("reduce", read_reduce(ranks, ranks - 1));
  if (ranks == 1) return list;
  add("ring", ring_all_reduce(ranks));
  add("all_pairs", all_pairs_all_gather(ranks));
  add("packets", packet_all_reduce(ranks));
  add("one_shot", one_shot_all_reduce(ranks));
  if (ranks == 2) add("fenced", fenced_all_reduce());
  add("port_packets", port_packets_in_parts(ranks));
  add("tree", tree_all_reduce(ranks));
  add("read_send", read_send_all_reduce(ranks));
  add("reduce_send", reduce_send_all_reduce(ranks));
  add("input", input_all_reduce(ranks));
  add("switch_scratch", switch_through_scratch(ranks));
  add("kept_packets", kept_packets_all_reduce(ranks));
  add("switch_packets", switch_packets_all_gather(ranks));
  return list;
}

}  // namespace tutti::plan
