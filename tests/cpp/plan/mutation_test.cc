// Mutants of right plans whose verdict is known without running them: what is left out must be missed, what is harmless
// must stay proven.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "plan/operations.h"
#include "plan/plan_builder.h"
#include "plan/verifier/verifier.h"

namespace tutti::plan {
namespace {

std::vector<std::pair<std::string, Plan>> originals() {
  return {{"ring_3", ring_all_reduce(3)},           {"ring_2", ring_all_reduce(2)},
          {"all_pairs_3", all_pairs_all_gather(3)}, {"packets_3", packet_all_reduce(3)},
          {"doubling_4", doubling_all_reduce(4)},   {"tree_3", tree_all_reduce(3)}};
}

// Calls visit(mutant, description) with a copy of every plan for every operation that `concerns`.
void for_each_mutant(const std::function<bool(const Operation&)>& concerns,
                     const std::function<void(std::vector<Operation>&, std::size_t)>& change,
                     const std::function<void(const Plan&, const std::string&)>& visit) {
  std::size_t mutants = 0;
  for (const auto& [name, plan] : originals()) {
    for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
      for (std::size_t b = 0; b < plan.ranks[r].blocks.size(); ++b) {
        for (std::size_t i = 0; i < plan.ranks[r].blocks[b].operations.size(); ++i) {
          if (!concerns(plan.ranks[r].blocks[b].operations[i])) continue;
          Plan mutant = plan;
          change(mutant.ranks[r].blocks[b].operations, i);
          visit(mutant, name + ", rank " + std::to_string(r) + ", block " + std::to_string(b) + ", operation " +
                            std::to_string(i));
          ++mutants;
        }
      }
    }
  }
  EXPECT_GT(mutants, 20u);
}

void erase(std::vector<Operation>& operations, std::size_t index) {
  operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(index));
}

bool signals_or_waits(const Operation& op) {
  const SyncKind sync = rules_of(op.kind).sync;
  return sync == SyncKind::kSignal || sync == SyncKind::kWait || sync == SyncKind::kRelaxedSignal ||
         sync == SyncKind::kRelaxedWait;
}

// A lone signal is left over, a lone wait never ends.
TEST(Mutation, HalfOfAPairIsMissed) {
  for_each_mutant(signals_or_waits, erase, [](const Plan& mutant, const std::string& where) {
    EXPECT_EQ(verify(mutant).outcome, Outcome::kRejected) << where;
  });
}

TEST(Mutation, EveryTransferIsMissed) {
  for_each_mutant([](const Operation& op) { return moves_data(op.kind); }, erase,
                  [](const Plan& mutant, const std::string& where) {
                    EXPECT_EQ(verify(mutant).outcome, Outcome::kRejected) << where;
                  });
}

// Every source and destination matters: one chunk further, where there is one, is wrong.
TEST(Mutation, EveryIndexMatters) {
  const auto shift = [](std::vector<Operation>& operations, std::size_t index) {
    ++operations[index].sources.back().index;
  };
  for_each_mutant([](const Operation& op) { return moves_data(op.kind); }, shift,
                  [](const Plan& mutant, const std::string& where) {
                    for (const Rank& rank : mutant.ranks) {
                      for (const ThreadBlock& block : rank.blocks) {
                        for (const Operation& op : block.operations) {
                          for (const Operand& source : op.sources) {
                            if (source.index >= rank.chunks_of(source.buffer)) return;  // the reader refuses it
                          }
                        }
                      }
                    }
                    EXPECT_EQ(verify(mutant).outcome, Outcome::kRejected) << where;
                  });
}

// Nor may all ranks' chunks be another's.
TEST(Mutation, AnotherOrderOfChunksIsMissed) {
  PlanBuilder builder(PlanCollective::kAllReduce, 1, 2, 2, 0);
  builder.at(0).copy(local(kI, 0), local(kO, 1)).copy(local(kI, 1), local(kO, 0));
  EXPECT_EQ(verify(builder.plan).fault.kind, FaultKind::kWrongResult);
}

// What publishes data must be a signal: relaxed, it needs at least a repair; never is it accepted as it stands.
TEST(Mutation, RelaxedPublicationIsNotAccepted) {
  for_each_mutant(
      [](const Operation& op) { return op.kind == OpKind::kSignal; },
      [](std::vector<Operation>& operations, std::size_t index) { operations[index].kind = OpKind::kRelaxedSignal; },
      [](const Plan& mutant, const std::string& where) {
        const Verdict verdict = verify(mutant);
        EXPECT_EQ(verdict.outcome, Outcome::kProvenAfterRepair) << where << ": " << verdict.fault.message;
      });
}

TEST(Mutation, ARedundantNopChangesNothing) {
  for_each_mutant([](const Operation&) { return true; },
                  [](std::vector<Operation>& operations, std::size_t index) {
                    operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(index), Operation{});
                  },
                  [](const Plan& mutant, const std::string& where) {
                    const Verdict verdict = verify_strictly(mutant);
                    EXPECT_EQ(verdict.outcome, Outcome::kProven) << where << ": " << verdict.fault.message;
                  });
}

TEST(Mutation, RenamedScratchChangesNothing) {
  for (auto& [name, plan] : originals()) {
    Plan mutant = plan;
    for (Rank& rank : mutant.ranks) {
      const std::int32_t chunks = rank.chunks_of(BufferKind::kScratch);
      for (ThreadBlock& block : rank.blocks) {
        for (Operation& op : block.operations) {
          for (auto* side : {&op.sources, &op.destinations}) {
            for (Operand& operand : *side) {
              const bool remote = operand.place == Operand::Place::kRemote;
              const BufferKind buffer =
                  remote ? rank.remote_buffers[block.buffers_of(op.channel)[operand.id]].buffer : operand.buffer;
              if (buffer == BufferKind::kScratch) operand.index = chunks - 1 - operand.index;
            }
          }
        }
      }
    }
    const Verdict verdict = verify_strictly(mutant);
    EXPECT_EQ(verdict.outcome, Outcome::kProven) << name << ": " << verdict.fault.message;
  }
}

}  // namespace
}  // namespace tutti::plan
