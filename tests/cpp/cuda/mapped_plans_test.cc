// Plans on GPUs in tensors that all ranks have mapped: reached in place, and only in calls that all ranks make.
#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cuda/plan_cases.h"
#include "cuda/plan_twin.h"
#include "executor/cuda/block_records.h"
#include "executor/program/serves.h"
#include "plan/structure.h"

namespace tutti::cuda::test {
namespace {

using plan::Plan;

std::vector<plan::NamedPlan> plans_that_map() {
  auto all = programs();
  for (const std::int32_t ranks : {2, 3}) {
    for (auto& named : plan::plans_of_every_operation(ranks)) all.push_back(std::move(named));
  }
  for (auto& named : replicated_programs()) all.push_back(std::move(named));
  all.push_back({"wide", std::make_shared<const Plan>(plan::wide_all_gather(3, 4))});
  std::erase_if(all, [](const auto& named) {
    const executor::DevicePlan device(named.plan, 0, {64, 1UL << 20});
    return !device.maps_input() && !device.maps_output();
  });
  return all;
}

// Tensors that all ranks have mapped are reached in place: the same bits, inputs as they were, nothing past the ends.
TEST(MappedPlans, TensorsAreReachedWhereTheyLie) {
  const auto all = plans_that_map();
  ASSERT_GE(all.size(), 40u);
  for (const auto& [name, plan] : all) {
    Twin twin(plan, 1 << 16);
    std::uint64_t seed = 0;
    for (const std::size_t bytes : {4, 1004, 4096}) {
      for (const bool in_place : {false, true}) {
        const ReduceOp op = reducing(*plan) && seed % 3 == 1 ? ReduceOp::kAvg : ReduceOp::kSum;
        const PlanRequest request{bytes, DataType::kFloat32, op, in_place, seed % 4 == 3 ? 3 : 0, true};
        ASSERT_EQ(twin.fault(request, ++seed), "")
            << name << ", " << plan->ranks.size() << " ranks, " << bytes << " bytes, in place: " << in_place;
      }
    }
    // The same memory serves both: calls with and without mapped tensors follow each other.
    ASSERT_EQ(twin.fault({1004, DataType::kFloat32}, ++seed), "") << name;
  }
}

// In segments where it has scratch or loops, else as one.
TEST(MappedPlans, LongMessages) {
  int whole = 0, cut = 0;
  for (const auto& [name, plan] : plans_that_map()) {
    const executor::DeviceLimits least{64, executor::DevicePlan(plan, 0, {64, 1UL << 20}).memory_bytes() / 16};
    Twin twin(plan, 1 << 16, least);
    const executor::DevicePlan& device = *twin.device.plans[0];
    executor::DeviceVariant mapped;
    mapped.mapped_input = device.maps_input();
    mapped.mapped_output = device.maps_output();
    ++(device.segment_bytes(mapped) > 50'004 ? whole : cut);
    ASSERT_LT(device.segment_bytes({}), 50'004u) << name;
    for (const bool in_place : {false, true}) {
      // Whole numbers: who adds up a chunk, and so in which order, depends on where segments end.
      ASSERT_EQ(twin.fault({50'004, DataType::kInt32, ReduceOp::kSum, in_place, 0, true}, 5), "") << name;
    }
  }
  EXPECT_GE(whole, 5);
  EXPECT_GT(cut, 5);
  executor::DeviceVariant all_mapped;
  all_mapped.mapped_input = all_mapped.mapped_output = true;
  const executor::DevicePlan scratch(std::make_shared<const Plan>(plan::two_step_all_reduce(2)), 0, {64, 1UL << 20});
  EXPECT_EQ(scratch.segment_bytes(all_mapped), scratch.segment_bytes());
}

// Memory that nobody may read or write: who does dies.
class Forbidden {
 public:
  explicit Forbidden(std::size_t bytes)
      : bytes_(bytes), at_(::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Forbidden() { ::munmap(at_, bytes_); }
  Forbidden(const Forbidden&) = delete;
  Forbidden& operator=(const Forbidden&) = delete;
  std::byte* data() const { return at_ == MAP_FAILED ? nullptr : static_cast<std::byte*>(at_); }

 private:
  std::size_t bytes_;
  void* at_;
};

// A call that not all ranks make reaches into no other rank's tensors: not where one makes another call, and not where
// one stays away. What a rank writes into its own output meanwhile, nobody looks at: the call fails.
TEST(MappedPlans, TensorsAreSafeFromOtherCalls) {
  const Forbidden others(1UL << 30);
  ASSERT_NE(others.data(), nullptr);
  for (const auto& [name, plan] : plans_that_map()) {
    const std::size_t ranks = plan->ranks.size();
    for (const bool comes : {true, false}) {
      if (!comes && ranks > 2) continue;  // a matter of time
      HostPlan device(plan);
      const std::int64_t timeout_ns = comes ? 60'000'000'000 : 30'000'000;
      for (std::size_t r = 0; r < ranks; ++r) device.worlds.host(static_cast<int>(r)).timeout_ns = timeout_ns;
      const plan::Shape shape = plan::shape_of(*plan);
      std::vector<std::vector<std::byte>> memory;
      std::vector<PlanCall> calls;
      for (std::size_t r = 0; r < 2 * ranks; ++r) {
        memory.emplace_back(static_cast<std::size_t>(shape.blocks[r % 2]) * 1000, std::byte{0xa5});
      }
      for (std::size_t r = 0; r < ranks; ++r) calls.push_back({memory[2 * r].data(), memory[2 * r + 1].data()});
      PlanHow how;
      how.mapped = true;
      how.instead = others.data();
      (comes ? how.other : how.silent) = 1;
      device.run(calls, 1000, DataType::kInt32, ReduceOp::kSum, how);
      EXPECT_EQ(device.worlds.host(0).code,
                static_cast<std::uint64_t>(comes ? device::FailureCode::kMismatch : device::FailureCode::kTimeout))
          << name;
    }
  }
}

// Before it reaches into another rank's tensor, a block has taken one of the word that says that all make the call; and
// it takes one also where it reaches into none, so that its count keeps up.
TEST(MappedPlans, EveryBlockAwaitsTheCallOnceBeforeItReachesOut) {
  int reaching = 0, others = 0, alone = 0;
  for (const auto& [name, plan] : plans_that_map()) {
    for (std::int32_t rank = 0; rank < static_cast<std::int32_t>(plan->ranks.size()); ++rank) {
      const executor::DevicePlan device(plan, rank, {64, 1UL << 20});
      HostPlan host(plan);
      executor::DeviceVariant variant;
      for (const std::size_t bytes : {4, 1004, 4096}) {
        variant.bytes = bytes;
        variant.mapped_input = device.maps_input();
        variant.mapped_output = device.maps_output();
        const executor::DeviceMemory memory = host.placement(rank);
        const auto agreed = reinterpret_cast<std::uint64_t>(memory.state + device.agreed_offset());
        const executor::DeviceRecords records = device.records(variant, memory);
        for (const executor::DeviceBlock& block : records.blocks) {
          int taken = 0;
          bool reached = false, joined = false;
          for (const executor::DeviceOp& op : std::span(records.ops).subspan(block.first, block.count)) {
            joined = joined || (taken > 0 && op.joins != 0);
            for (const executor::DeviceOperand& operand :
                 std::span(records.operands).subspan(op.first, op.sources + op.targets)) {
              if (operand.place >= executor::kPeers) {
                reached = true;
                ASSERT_TRUE(joined) << name << ", rank " << rank << ", " << bytes << " bytes";
              } else if (op.code == executor::DeviceCode::kWait && operand.value == agreed) {
                alone += op.sources == 1 ? 1 : 0;
                ++taken;
              }
            }
          }
          ASSERT_EQ(taken, 1) << name << ", rank " << rank << ", " << bytes << " bytes";
          ++(reached ? reaching : others);
        }
      }
    }
  }
  EXPECT_GT(reaching, 0);
  EXPECT_GT(others, 0);
  EXPECT_LT(alone, reaching);  // with other words, where there are any
}

// With a wait that comes before, else by one of its own, right before the first touch, or at the end.
TEST(MappedPlans, ABlockAwaitsTheCallNoLaterThanItReachesOut) {
  using executor::BlockRecord;
  using executor::DeviceCode;
  const auto data = [](std::uint16_t from, std::uint16_t to) {
    BlockRecord record;
    record.op.code = DeviceCode::kCopy;
    record.op.bytes = 16;
    record.sources.emplace_back().place = from;
    record.targets.emplace_back().place = to;
    return record;
  };
  BlockRecord wait;
  wait.op.code = DeviceCode::kWait;
  wait.sources.emplace_back().value = 1;
  executor::DeviceOperand word;
  word.value = 2;
  const std::uint16_t own = 1, peer = executor::kPeers;
  const auto said = [&](executor::BlockRecords records) {
    executor::await_before_peers(records, word);
    std::string text;
    for (const BlockRecord& record : records) {
      if (record.op.code == DeviceCode::kCopy) text += 'c';
      for (const auto& operand : record.sources) text += operand.value > 0 ? std::to_string(operand.value) : "";
    }
    return text;
  };
  EXPECT_EQ(said({data(own, own), data(peer, own)}), "c2c");
  EXPECT_EQ(said({data(own, peer), wait, data(own, peer)}), "2c1c");
  EXPECT_EQ(said({wait, data(own, own), data(own, peer)}), "12cc");
  EXPECT_EQ(said({wait, wait, data(own, peer), wait}), "112c1");
  EXPECT_EQ(said({data(own, own)}), "c2");
  EXPECT_EQ(said({wait, data(own, own)}), "12c");
  EXPECT_EQ(said({}), "2");
}

}  // namespace
}  // namespace tutti::cuda::test
