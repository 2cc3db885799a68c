// Why nothing moves any more: a cycle of thread blocks, or one that waits for what never comes.
#include <algorithm>
#include <set>
#include <string>

#include "plan/operations.h"
#include "plan/verifier/execution.h"

namespace tutti::plan {
namespace {

constexpr std::size_t kMostNamed = 16;  // of the thread blocks of a cycle

bool names(const std::vector<std::int32_t>& ids, std::int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// True if `visit` is true of an operation of the block or of a body in it.
template <typename Visit>
bool any_operation(const ThreadBlock& block, Budget& budget, const Visit& visit) {
  budget.spend(block.operations.size());
  return std::any_of(block.operations.begin(), block.operations.end(), [&](const Operation& op) {
    return visit(op) || std::any_of(op.body.begin(), op.body.end(), visit);
  });
}

}  // namespace

Execution::Waiting Execution::waiting_of(const Block& block) const {
  const auto find = [&](std::int32_t rank, const auto& visit) -> const Block* {
    for (std::size_t b = 0; b < plan_.ranks[rank].blocks.size(); ++b) {
      const Block& candidate = blocks_[first_block_[rank] + b];
      if (&candidate != &block && !candidate.finished && visit(candidate)) return &candidate;
    }
    return nullptr;
  };
  if (block.ended) {
    return {"has ended its call and waits for the rank's other thread blocks",
            find(block.rank, [](const Block& other) { return !other.ended; })};
  }
  const Step step = step_of(block);
  const Operation& op = *step.op;
  const OperationRules& rules = rules_of(op.kind);
  if (rules.sync == SyncKind::kBarrier) {
    return {"waits at barrier " + std::to_string(op.barrier_id), find(block.rank, [&](const Block& other) {
              const ThreadBlock& own = plan_.ranks[block.rank].blocks[other.index];
              const bool here = other.arrived && step_of(other).op->barrier_id == op.barrier_id;
              return !here && any_operation(own, budget_, [&](const Operation& o) {
                return o.kind == OpKind::kBarrier && o.barrier_id == op.barrier_id;
              });
            })};
  }
  if (rules.sync == SyncKind::kSemaphoreAcquire) {
    for (const std::int32_t id : op.semaphore_ids) {
      if (semaphores_[block.rank][id].count() > 0) continue;
      return {"acquires semaphore " + std::to_string(id), find(block.rank, [&](const Block& other) {
                return any_operation(plan_.ranks[block.rank].blocks[other.index], budget_, [&](const Operation& o) {
                  return o.kind == OpKind::kSemRelease && names(o.semaphore_ids, id);
                });
              })};
    }
  }
  for (std::size_t k = 0; k < op.channel_ids.size() && !moves_data(op.kind); ++k) {
    const auto [rank, channel] = counter_of(block, step, k, true);
    if (!counters_[static_cast<int>(op.channel)][rank][channel].tokens.empty()) continue;
    const auto [peer, theirs] = counter_of(block, step, k, false);
    return {"waits for a signal from rank " + std::to_string(peer),
            find(peer, [&, at = theirs, who = peer](const Block& other) {
              const ThreadBlock& own = plan_.ranks[who].blocks[other.index];
              return any_operation(own, budget_, [&](const Operation& o) {
                const OperationRules& r = rules_of(o.kind);
                const bool raises = r.signals || r.sync == SyncKind::kSignal || r.sync == SyncKind::kRelaxedSignal;
                return raises && o.channel == op.channel &&
                       std::any_of(o.channel_ids.begin(), o.channel_ids.end(),
                                   [&](std::int32_t id) { return own.channels_of(o.channel)[id] == at; });
              });
            })};
  }
  return {"waits for packets that have not been written in this call", nullptr};
}

void Execution::report_deadlock() const {
  const auto stuck =
      std::find_if(blocks_.begin(), blocks_.end(), [](const Block& b) { return !b.finished && !b.ended; });
  std::vector<const Block*> path;
  std::set<const Block*> met;
  const Block* at = stuck != blocks_.end() ? &*stuck : nullptr;
  while (at != nullptr && met.insert(at).second) {
    path.push_back(at);
    at = waiting_of(*at).on;
  }
  // The cycle alone, if there is one.
  if (at != nullptr) path.erase(path.begin(), std::find(path.begin(), path.end(), at));
  Fault fault;
  fault.kind = FaultKind::kDeadlock;
  fault.message = at != nullptr ? "these wait for each other" : "this waits for what never comes";
  if (at == nullptr && !path.empty()) path.erase(path.begin(), path.end() - 1);
  for (const Block* block : path) {
    if (fault.sites.size() == kMostNamed) {
      fault.message += "; and " + std::to_string(path.size() - kMostNamed) + " more";
      break;
    }
    const Site site = block->ended ? Site{block->rank, block->index, -1, -1, -1, block->invocation, "end of call", ""}
                                   : sites_.site(step_of(*block).moment);
    fault.message += (block == path.front() ? ": " : "; ") + describe(site) + " " + waiting_of(*block).what;
    fault.sites.push_back(site);
  }
  throw FaultFound{std::move(fault)};
}

}  // namespace tutti::plan
