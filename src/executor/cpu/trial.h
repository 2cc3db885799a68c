// Runs a plan in this process on made-up data and checks the result against the definition of its collective.
//
// The data are such that every order of reduction gives the same bits: so a difference is a fault of the plan, never
// rounding. Thread rule: any thread; a trial keeps all its state to itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "executor/cpu/local_world.h"
#include "plan/plan.h"
#include "tutti/types.h"

namespace tutti::executor {

struct TrialRequest {
  std::int64_t block_bytes = 0;  // of one rank block
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  LocalOptions options;
  int rounds = 1;  // with fresh data, each of options.invocations
};

struct TrialReport {
  bool checked = false;  // the collective has a definition to check against
  std::string fault;     // empty if all is right
  std::vector<std::int64_t> nanoseconds;
};

// Throws InvalidArgument or Unsupported if the plan cannot run this message: dtype and op that do not go together, a
// size that is no multiple of the element, an operation that the plan does not serve.
TrialReport try_plan(std::shared_ptr<const plan::Plan> plan, const TrialRequest& request);

// Throws that.
void check_request(const plan::Plan& plan, const TrialRequest& request);

// What runs a message: an executor for all ranks at once. Behind each buffer lie kTrialGuard bytes that it must leave
// alone.
using RunMessage = std::function<LocalResult(const LocalMessage& message, const LocalOptions& options)>;
inline constexpr std::size_t kTrialGuard = 64;
// The same by `run`.
TrialReport try_plan(const plan::Plan& plan, const TrialRequest& request, const RunMessage& run);

}  // namespace tutti::executor
