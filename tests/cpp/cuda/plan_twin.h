// Calls of one plan on two executors, that of CPUs and that of GPUs on the host: the same bits.
#pragma once

#include <algorithm>
#include <random>

#include "cuda/host_plans.h"
#include "cuda/plan_cases.h"
#include "executor/cpu/local_world.h"

namespace tutti::cuda::test {

inline bool reducing(const plan::Plan& plan) {
  using plan::PlanCollective;
  return plan.collective == PlanCollective::kAllReduce || plan.collective == PlanCollective::kReduceScatter ||
         plan.collective == PlanCollective::kReduce;
}

// Calls of one plan on both executors.
class Twin {
 public:
  Twin(std::shared_ptr<const plan::Plan> plan, std::size_t most_bytes, executor::DeviceLimits limits = {64, 1UL << 20})
      : plan_(std::move(plan)),
        shape_(plan::shape_of(*plan_)),
        local_(plan_, static_cast<std::int64_t>(most_bytes), static_cast<std::int64_t>(most_bytes)),
        device(plan_, limits) {}

  // What differs, or nothing.
  std::string fault(const PlanRequest& request, std::uint64_t seed) {
    const std::vector<std::vector<std::byte>> expected = run_on_cpu(request, seed);
    const std::size_t in = blocks(0) * request.bytes, out = blocks(1) * request.bytes;
    std::vector<std::vector<std::byte>> inputs, outputs;
    std::vector<PlanCall> calls;
    for (std::size_t r = 0; r < expected.size(); ++r) {
      inputs.push_back(input(request, seed, r));
      outputs.emplace_back(out + kGuard, std::byte{0xa5});
      const bool has_in = has(0, r), has_out = has(1, r);
      PlanCall call{has_in ? inputs[r].data() : nullptr, has_out ? outputs[r].data() : nullptr};
      if (request.in_place && has_in && has_out) {
        std::byte* whole = in > out ? inputs[r].data() : outputs[r].data();
        const std::size_t mine = in == out ? 0 : r * request.bytes;
        call = in > out ? PlanCall{whole, whole + mine} : PlanCall{whole + mine, whole};
        if (in <= out) std::memcpy(call.input, inputs[r].data(), in);
      }
      calls.push_back(call);
    }
    PlanHow how;
    how.workers = request.workers;
    how.mapped = request.mapped;
    device.run(calls, request.bytes, request.dtype, request.op, how, compiled);
    for (std::size_t r = 0; r < expected.size(); ++r) {
      if (device.worlds.host(static_cast<int>(r)).code != 0) return "rank " + std::to_string(r) + " failed";
      const bool apart = calls[r].input == inputs[r].data() && calls[r].output == outputs[r].data();
      if (apart && !plan_->in_place && inputs[r] != input(request, seed, r)) {
        return "rank " + std::to_string(r) + ": its input has changed";
      }
      if (!has(1, r)) continue;
      for (std::size_t i = 0; i < out; ++i) {
        if (calls[r].output[i] != expected[r][i]) {
          return "rank " + std::to_string(r) + ": byte " + std::to_string(i) + " of " + std::to_string(out);
        }
      }
      if (calls[r].output == outputs[r].data() &&
          std::any_of(outputs[r].end() - kGuard, outputs[r].end(), [](std::byte b) { return b != std::byte{0xa5}; })) {
        return "rank " + std::to_string(r) + ": written past the end";
      }
    }
    return "";
  }

 private:
  static constexpr std::ptrdiff_t kGuard = 64;

  std::size_t blocks(std::size_t side) const { return static_cast<std::size_t>(shape_.blocks[side]); }
  bool has(int side, std::size_t rank) const {
    using plan::PlanCollective;
    const PlanCollective c = plan_->collective;
    const bool rooted = side == 0 ? c == PlanCollective::kBroadcast || c == PlanCollective::kScatter
                                  : c == PlanCollective::kReduce || c == PlanCollective::kGather;
    return !rooted || static_cast<std::int32_t>(rank) == plan_->root;
  }

  std::vector<std::byte> input(const PlanRequest& request, std::uint64_t seed, std::size_t rank) const {
    std::vector<std::byte> data(blocks(0) * request.bytes + kGuard);
    std::mt19937_64 random(seed * 1000 + rank);
    if (reducing(*plan_) && request.dtype == DataType::kFloat32) {
      // Of sizes that differ: the order of a sum shows in its bits.
      for (std::size_t i = 0; i + 4 <= data.size(); i += 4) {
        const float value = static_cast<float>(static_cast<double>(random() % 20011) / 7.0 - 1000.0);
        std::memcpy(&data[i], &value, 4);
      }
      return data;
    }
    for (std::byte& b : data) b = static_cast<std::byte>(random() % (reducing(*plan_) ? 64 : 256));
    return data;
  }

  std::vector<std::vector<std::byte>> run_on_cpu(const PlanRequest& request, std::uint64_t seed) {
    executor::LocalMessage message;
    message.dtype = request.dtype;
    message.op = request.op;
    message.input_block_bytes = message.output_block_bytes = static_cast<std::int64_t>(request.bytes);
    std::vector<std::vector<std::byte>> inputs, outputs;
    const std::size_t in = blocks(0) * request.bytes, out = blocks(1) * request.bytes;
    std::vector<std::byte*> results;
    for (std::size_t r = 0; r < plan_->ranks.size(); ++r) {
      inputs.push_back(input(request, seed, r));
      outputs.emplace_back(out + kGuard);
      std::byte* input_at = inputs[r].data();
      std::byte* output_at = outputs[r].data();
      if (plan_->in_place && in <= out) {
        input_at = output_at + (in == out ? 0 : r * request.bytes);
        std::memcpy(input_at, inputs[r].data(), in);
      } else if (plan_->in_place) {
        output_at = input_at + r * request.bytes;
      }
      message.inputs.push_back(input_at);
      message.outputs.push_back(output_at);
    }
    const executor::LocalResult result = local_.run(message);
    EXPECT_TRUE(result.outcome.ok()) << result.waiting;
    std::vector<std::vector<std::byte>> expected;
    for (std::byte* at : message.outputs) expected.emplace_back(at, at + out);
    return expected;
  }

  std::shared_ptr<const plan::Plan> plan_;
  plan::Shape shape_;
  executor::LocalWorld local_;

 public:
  HostPlan device;
  HostPlan::Compiled compiled;  // of calls on GPUs; empty: all ranks interpret
};

}  // namespace tutti::cuda::test
