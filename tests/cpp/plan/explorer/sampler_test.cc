// The verifier against random schedules: no mutant that goes wrong in any of them may be accepted.
#include "plan/explorer/sampler.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "plan/operations.h"
#include "plan/plan_builder.h"
#include "plan/structure.h"
#include "plan/verifier/verifier.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::uint64_t kSeed = 20240611;
constexpr int kSchedules = 40;

std::vector<std::pair<std::string, Plan>> originals() {
  return {{"ring_2", ring_all_reduce(2)},           {"ring_3", ring_all_reduce(3)},
          {"all_pairs_2", all_pairs_all_gather(2)}, {"all_pairs_3", all_pairs_all_gather(3)},
          {"packets_2", packet_all_reduce(2)},      {"packets_3", packet_all_reduce(3)},
          {"doubling_2", doubling_all_reduce(2)},   {"tree_3", tree_all_reduce(3)}};
}

std::string first_fault(const Plan& plan, std::uint64_t seed) {
  for (int i = 0; i < kSchedules; ++i) {
    std::string fault = run_random_schedule(plan, plan.double_scratch ? 3 : 2, seed + static_cast<std::uint64_t>(i));
    if (!fault.empty()) return fault;
  }
  return "";
}

TEST(Sampler, RightPlansSurvive) {
  for (const auto& [name, plan] : originals()) EXPECT_EQ(first_fault(plan, kSeed), "") << name << ", seed " << kSeed;
}

// It must be able to see each class of fault, or its silence would mean nothing.
TEST(Sampler, FindsEveryClassOfFault) {
  const auto without = [](Plan plan, OpKind kind, std::size_t nth) {
    auto& operations = plan.ranks[0].blocks[0].operations;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].kind != kind || nth-- > 0) continue;
      operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    return plan;
  };
  const Plan ring = ring_all_reduce(2);
  EXPECT_NE(first_fault(without(ring, OpKind::kPut, 0), kSeed), "");
  EXPECT_NE(first_fault(without(ring, OpKind::kSignal, 0), kSeed), "");
  EXPECT_NE(first_fault(without(ring, OpKind::kWait, 0), kSeed), "");
  EXPECT_NE(first_fault(without(ring, OpKind::kNop, 1), kSeed), "") << "signal no longer covers the put";
  Plan relaxed = ring;
  for (Rank& rank : relaxed.ranks) {
    for (Operation& op : rank.blocks[0].operations) {
      if (op.kind == OpKind::kSignal) op.kind = OpKind::kRelaxedSignal;
    }
  }
  EXPECT_NE(first_fault(relaxed, kSeed), "");
  Plan single = packet_all_reduce(2);
  single.double_scratch = false;
  EXPECT_NE(first_fault(single, kSeed), "");
}

// One random change.
Plan mutate(Plan plan, std::mt19937_64& random) {
  const auto below = [&random](std::size_t n) { return std::uniform_int_distribution<std::size_t>(0, n - 1)(random); };
  Rank& rank = plan.ranks[below(plan.ranks.size())];
  auto& operations = rank.blocks[below(rank.blocks.size())].operations;
  const std::size_t at = below(operations.size());
  Operation& op = operations[at];
  switch (below(6)) {
    case 0:
      operations.erase(operations.begin() + static_cast<std::ptrdiff_t>(at));
      break;
    case 1:
      std::swap(op, operations[below(operations.size())]);
      break;
    case 2:
      operations.insert(operations.begin() + static_cast<std::ptrdiff_t>(at), operations[below(operations.size())]);
      break;
    case 3:
      if (op.kind == OpKind::kSignal) op.kind = OpKind::kRelaxedSignal;
      if (op.kind == OpKind::kWait) op.kind = OpKind::kRelaxedWait;
      break;
    case 4:
      if (!op.sources.empty()) op.sources[below(op.sources.size())].index = static_cast<std::int32_t>(below(3));
      break;
    default:
      if (!op.destinations.empty()) {
        op.destinations[below(op.destinations.size())].index = static_cast<std::int32_t>(below(3));
      }
  }
  return plan;
}

TEST(Sampler, NoMutantThatGoesWrongIsAccepted) {
  std::mt19937_64 random(kSeed);
  int accepted = 0;
  int wrong = 0;
  int unexplained = 0;
  for (const auto& [name, plan] : originals()) {
    for (int i = 0; i < 150; ++i) {
      const Plan mutant = mutate(plan, random);
      if (mutant == plan) continue;
      try {
        check_structure(mutant);
      } catch (const Error&) {
        continue;  // the reader refuses it
      }
      const Verdict verdict = verify_strictly(mutant);
      const std::string fault = first_fault(mutant, kSeed + static_cast<std::uint64_t>(i));
      const bool proven = verdict.outcome == Outcome::kProven;
      EXPECT_FALSE(proven && !fault.empty()) << name << ", mutant " << i << ", seed " << kSeed << ": " << fault;
      accepted += proven ? 1 : 0;
      wrong += fault.empty() ? 0 : 1;
      unexplained += !proven && fault.empty() ? 1 : 0;
    }
  }
  std::printf("%d accepted, %d wrong in some schedule, %d rejected though no sampled schedule went wrong\n", accepted,
              wrong, unexplained);
  EXPECT_GT(accepted, 20);
  EXPECT_GT(wrong, 300);
}

}  // namespace
}  // namespace tutti::plan
