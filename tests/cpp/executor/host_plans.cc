#include "executor/host_plans.h"

#include "executor/plan_parts.h"

namespace tutti::plan {
namespace {

constexpr int kCredit = 1;  // of two channels a pair the one that says "I have come"

// One rank's thread block, which reaches each peer the way that their hosts allow.
class Reach {
 public:
  Reach(const Hosts& hosts, PlanBuilder& builder, std::int32_t rank)
      : hosts_(hosts), rank_(rank), block(builder.at(rank)) {}

  void say(std::int32_t peer) const {
    if (hosts_.far(rank_, peer)) {
      block.port_signal(peer, kCredit);
    } else {
      block.signal(peer, kCredit, OpKind::kRelaxedSignal);
    }
  }
  void hear(std::int32_t peer) const {
    if (hosts_.far(rank_, peer)) {
      block.port_wait(peer, kCredit);
    } else {
      block.wait(peer, kCredit, OpKind::kRelaxedWait);
    }
  }
  void meet_all() const {
    for_peers(rank_, hosts_.ranks, [&](std::int32_t peer) { say(peer); });
    for_peers(rank_, hosts_.ranks, [&](std::int32_t peer) { hear(peer); });
    block.nop();
  }
  // Puts and signals; the source may change after a flush.
  void give(std::int32_t peer, Operand source, BufferKind buffer, std::int32_t index) const {
    if (hosts_.far(rank_, peer)) {
      block.put_port(OpKind::kPutWithSignal, peer, source, buffer, index);
    } else {
      block.put(peer, source, buffer, index).nop().signal(peer);
    }
  }
  void take(std::int32_t peer) const {
    if (hosts_.far(rank_, peer)) {
      block.port_wait(peer);
    } else {
      block.wait(peer);
    }
  }
  void flush(std::int32_t peer) const {
    if (hosts_.far(rank_, peer)) block.flush(peer);
  }

 private:
  const Hosts& hosts_;
  const std::int32_t rank_;

 public:
  const PlanBuilder::Block block;
};

}  // namespace

Plan hosts_all_gather(const Hosts& hosts) {
  PlanBuilder builder(PlanCollective::kAllGather, hosts.ranks, 1, hosts.ranks, 1);
  for (std::int32_t r = 0; r < hosts.ranks; ++r) {
    const Reach reach(hosts, builder, r);
    const auto& block = reach.block;
    reach.meet_all();
    block.copy(local(kI, 0), local(kS, 0)).copy(local(kI, 0), local(kO, r)).nop();
    for_peers(r, hosts.ranks, [&](std::int32_t peer) {
      const int how = (r + peer) % 3;
      if (!hosts.far(r, peer) || how == 0) {
        reach.give(peer, local(kS, 0), kO, r);
      } else if (how == 1) {
        block.put_port(OpKind::kPut, peer, local(kS, 0), kO, r).port_signal(peer).flush(peer);
      } else {
        block.put_port(OpKind::kPutWithSignalAndFlush, peer, local(kS, 0), kO, r);
      }
    });
    for_peers(r, hosts.ranks, [&](std::int32_t peer) { reach.take(peer); });
    for_peers(r, hosts.ranks, [&](std::int32_t peer) { reach.flush(peer); });
  }
  return finished(builder);
}

Plan hosts_ring_all_reduce(const Hosts& hosts) {
  const std::int32_t n = hosts.ranks;
  PlanBuilder builder(PlanCollective::kAllReduce, n, n, n, n);
  for (std::int32_t r = 0; r < n; ++r) {
    const Reach reach(hosts, builder, r);
    const auto& block = reach.block;
    const std::int32_t next = (r + 1) % n;
    const std::int32_t before = (r + n - 1) % n;
    reach.say(before);
    reach.hear(next);
    block.nop();
    for (std::int32_t step = 0; step + 1 < n; ++step) {
      const std::int32_t chunk = (r + n - 1 - step) % n;
      reach.give(next, local(step == 0 ? kI : kS, chunk), kS, chunk);
      reach.take(before);
      block.nop();
      const std::int32_t mine = (chunk + n - 1) % n;
      // Sums stay in scratch: no output is written twice, for a port makes nothing visible but what it carries.
      const BufferKind target = step + 2 < n ? kS : kO;
      block.move(OpKind::kReduce, {local(kS, mine), local(kI, mine)}, {local(target, mine)}).nop();
    }
    for (std::int32_t step = 0; step + 1 < n; ++step) {
      const std::int32_t chunk = (r + n - step) % n;
      reach.give(next, local(kO, chunk), kO, chunk);
      reach.take(before);
      block.nop();
    }
    reach.flush(next);
  }
  return finished(builder);
}

Plan hosts_looped_all_reduce(const Hosts& hosts, std::int64_t unit) {
  const std::int32_t n = hosts.ranks;
  PlanBuilder builder(PlanCollective::kAllReduce, n, 1, 1, n);
  for (std::int32_t r = 0; r < n; ++r) {
    const Reach reach(hosts, builder, r);
    reach.meet_all();
    auto& operations = builder.plan.ranks[static_cast<std::size_t>(r)].blocks[0].operations;
    const auto begin = static_cast<std::ptrdiff_t>(operations.size());
    std::vector<Operand> sources{local(kI, 0)};
    for_peers(r, n, [&](std::int32_t peer) {
      reach.give(peer, local(kI, 0), kS, r);
      sources.push_back(local(kS, peer));
    });
    for_peers(r, n, [&](std::int32_t peer) { reach.take(peer); });
    reach.block.nop().move(OpKind::kReduce, sources, {local(kO, 0)}).nop();
    for_peers(r, n, [&](std::int32_t peer) { reach.flush(peer); });
    Operation loop;
    loop.kind = OpKind::kPipeline;
    loop.iteration = {unit, 1};
    loop.body.assign(operations.begin() + begin, operations.end());
    operations.erase(operations.begin() + begin, operations.end());
    reach.block.add(loop);
  }
  return finished(builder);
}

Plan hosts_packet_all_reduce(const Hosts& hosts) {
  const std::int32_t n = hosts.ranks;
  PlanBuilder builder(PlanCollective::kAllReduce, n, 2, 2, 2 * n);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < n; ++r) {
    for (std::int32_t half = 0; half < 2; ++half) {
      const auto block = builder.at(r, half);
      std::vector<Operand> sources{local(kI, half)};
      block.move(OpKind::kCopyPackets, {local(kI, half)}, {local(kS, 2 * r + half)}).nop();
      for_peers(r, n, [&](std::int32_t peer) {
        if (hosts.far(r, peer)) {
          block.put_port(OpKind::kPutPackets, peer, local(kS, 2 * r + half), kS, 2 * r + half);
        } else {
          block.move_memory(OpKind::kPutPackets, {local(kI, half)}, {block.remote(kMemory, peer, kS, 2 * r + half)});
        }
        sources.push_back(local(kS, 2 * peer + half));
      });
      block.move(OpKind::kReducePackets, sources, {local(kO, half)});
      for_peers(r, n, [&](std::int32_t peer) {
        if (hosts.far(r, peer)) block.flush(peer);
      });
    }
  }
  return finished(builder);
}

Plan hosts_packet_ring_all_gather(const Hosts& hosts) {
  const std::int32_t n = hosts.ranks;
  PlanBuilder builder(PlanCollective::kAllGather, n, 1, n, n);
  builder.plan.protocol = Protocol::kLL;
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < n; ++r) {
    const std::int32_t next = (r + 1) % n;
    const auto block = builder.at(r);
    block.move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, r)}).copy(local(kI, 0), local(kO, r)).nop();
    for (std::int32_t step = 0; step + 1 < n; ++step) {
      const std::int32_t chunk = (r + n - step) % n;
      if (hosts.far(r, next)) {
        block.put_port(OpKind::kReadPutPackets, next, local(kS, chunk), kS, chunk);
      } else {
        block.move_memory(OpKind::kReadPutPackets, {local(kS, chunk)}, {block.remote(kMemory, next, kS, chunk)});
      }
    }
    for (std::int32_t step = 1; step < n; ++step) {
      const std::int32_t chunk = (r + n - step) % n;
      block.move(OpKind::kUnpackPackets, {local(kS, chunk)}, {local(kO, chunk)});
    }
    if (hosts.far(r, next)) block.flush(next);
  }
  return finished(builder);
}

Plan hosts_in_place_all_gather(const Hosts& hosts) {
  PlanBuilder builder(PlanCollective::kAllGather, hosts.ranks, 1, hosts.ranks, 0);
  builder.plan.in_place = true;
  for (std::int32_t r = 0; r < hosts.ranks; ++r) {
    const Reach reach(hosts, builder, r);
    reach.meet_all();
    for_peers(r, hosts.ranks, [&](std::int32_t peer) { reach.give(peer, local(kO, r), kO, r); });
    for_peers(r, hosts.ranks, [&](std::int32_t peer) { reach.take(peer); });
    for_peers(r, hosts.ranks, [&](std::int32_t peer) { reach.flush(peer); });
  }
  return finished(builder);
}

}  // namespace tutti::plan
