#include "cuda/plan_cases.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "plan/operations.h"
#include "plan/reader.h"

namespace tutti::cuda::test {

using plan::NamedPlan;
using plan::Plan;

namespace {

std::vector<NamedPlan> plans_in(const char* folder) {
  std::vector<NamedPlan> list;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    list.push_back({entry.path().stem().string(), std::make_shared<const Plan>(plan::read_plan(text))});
  }
  std::sort(list.begin(), list.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return list;
}

}  // namespace

std::vector<NamedPlan> programs() { return plans_in(TUTTI_EXPLORED_PROGRAMS); }
std::vector<NamedPlan> replicated_programs() { return plans_in(TUTTI_REPLICATED_PROGRAMS); }

std::shared_ptr<const Plan> any_reduction(Plan plan) {
  for (plan::Rank& rank : plan.ranks) {
    for (plan::ThreadBlock& block : rank.blocks) {
      for (plan::Operation& op : block.operations) {
        if (plan::reduces(op.kind)) op.reduce = plan::ReduceKind::kAny;
      }
    }
  }
  plan.reduce = plan::ReduceKind::kAny;
  return std::make_shared<const Plan>(std::move(plan));
}

std::vector<CompiledRequest> compiled_requests() {
  const executor::DeviceLimits ample{64, std::size_t{1} << 20};
  std::vector<CompiledRequest> list;
  const auto small = plan::plans_of_every_operation(2);
  auto all = programs();
  all.insert(all.end(), small.begin(), small.end());
  for (const NamedPlan& named : all) {
    const bool in_place = list.size() % 2 == 1;  // and less than a chunk of each block, and uneven ends
    list.push_back({named, {in_place ? 1004UL : 260UL, DataType::kFloat32, ReduceOp::kSum, in_place}, ample});
  }
  // Puts to rank after rank, which a loop might take for one.
  for (const auto& plan : {plan::packet_all_reduce(4), plan::packet_two_step_all_reduce(4)}) {
    list.push_back({{plan.name, std::make_shared<const Plan>(plan)}, {512, DataType::kFloat32}, ample});
  }
  // Thread blocks that are alike: one function for several.
  for (const NamedPlan& named : replicated_programs()) list.push_back({named, {4096, DataType::kFloat32}, ample});
  // Messages of several segments with many turns of loops, averaged.
  for (const NamedPlan& named : small) {
    const executor::DeviceLimits least{64, executor::DevicePlan(named.plan, 0, ample).memory_bytes() / 16};
    if (named.name.find("loop") == std::string::npos && named.name.find("ring") == std::string::npos) continue;
    const ReduceOp op = named.plan->reduce ? ReduceOp::kAvg : ReduceOp::kSum;
    list.push_back({named, {50'004, DataType::kFloat32, op}, least});
  }
  // Peers' tensors reached in place, by several blocks and by one, of both sides and of one.
  for (const NamedPlan& named : small) {
    const executor::DevicePlan device(named.plan, 0, ample);
    if (!device.maps_input() && !device.maps_output()) continue;
    const bool in_place = list.size() % 2 == 1;
    list.push_back({named, {1004, DataType::kFloat32, ReduceOp::kSum, in_place, 0, true}, ample});
  }
  const std::pair<DataType, ReduceOp> kinds[] = {
      {DataType::kBfloat16, ReduceOp::kSum},     {DataType::kFloat16, ReduceOp::kAvg},
      {DataType::kInt8, ReduceOp::kSum},         {DataType::kInt64, ReduceOp::kMin},
      {DataType::kUint16, ReduceOp::kBxor},      {DataType::kFloat64, ReduceOp::kProduct},
      {DataType::kComplex64, ReduceOp::kSum},    {DataType::kBool, ReduceOp::kMax},
      {DataType::kFloat8E4M3fn, ReduceOp::kSum}, {DataType::kInt32, ReduceOp::kAvg},
  };
  const auto packets = any_reduction(plan::packet_all_reduce(2)), ring = any_reduction(plan::ring_all_reduce(2));
  const auto one_shot = any_reduction(plan::one_shot_all_reduce(3));
  for (const auto& [dtype, op] : kinds) {
    list.push_back({{one_shot->name, one_shot}, {480, dtype, op}, ample});
    const auto& plan = list.size() % 2 == 0 ? packets : ring;
    list.push_back({{plan->name, plan}, {480, dtype, op, list.size() % 3 == 0}, ample});
  }
  return list;
}

}  // namespace tutti::cuda::test
