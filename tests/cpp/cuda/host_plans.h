// Plans as a GPU runs them, on the host: every thread block of every rank is a thread (or several), memory is plain.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "algorithm/cuda/plan_kernel.cuh"
#include "cuda/host_ranks.h"
#include "cuda/thread_team.h"
#include "executor/cuda/compiled_args.h"
#include "executor/cuda/device_plan.h"

namespace tutti::cuda::test {

// A compiled plan on the host: its thread block of `team`.
using CompiledPlan = void (*)(const ThreadTeam& team, const DeviceWorld& world, const executor::CompiledArgs& args);

// The buffers of one rank's call: rank blocks one after another.
struct PlanCall {
  std::byte* input = nullptr;  // null: this rank has none
  std::byte* output = nullptr;
};

// How the ranks' calls are run, beside what they are.
struct PlanHow {
  int workers = 0;  // 0: a block is one thread
  int silent = -1;  // a rank that does not come
  std::uint32_t fingerprint = 77;
  std::uint32_t ticket = 0;      // of an eager call
  bool mapped = false;           // all ranks' tensors are
  int other = -1;                // a rank that makes another call
  int idle = -1;                 // a rank that comes, and runs nothing of the plan
  int only = -1;                 // the one thread block of a rank that runs, as if the others had before
  int rounds = 1;                // so often; a rank begins the next one as soon as its own blocks have ended
  std::byte* instead = nullptr;  // of all tensors of other ranks, as a rank has mapped them
};

// What the records of rank `r` of a call depend on.
inline executor::DeviceVariant variant_of(const plan::Plan& p, int r, const PlanCall& call, std::size_t bytes,
                                          std::size_t whole, ReduceOp op) {
  const plan::Shape shape = plan::shape_of(p);
  executor::DeviceVariant variant;
  variant.bytes = bytes;
  variant.has_input = call.input != nullptr;
  variant.has_output = call.output != nullptr;
  if (variant.has_output && variant.has_input && p.in_place) {
    const std::size_t own = shape.blocks[0] < shape.blocks[1] ? static_cast<std::size_t>(r) * whole : 0;
    variant.input_in_place = call.input == call.output + own;
  }
  const std::size_t in = static_cast<std::size_t>(shape.blocks[0]) * whole;
  const std::size_t out = static_cast<std::size_t>(shape.blocks[1]) * whole;
  variant.overlaps = !p.in_place && variant.has_input && variant.has_output && call.input < call.output + out &&
                     call.output < call.input + in;
  variant.averages = op == ReduceOp::kAvg && variant.has_output;
  return variant;
}

class HostPlan {
 public:
  // For a rank's part of a call: what runs it, or null, and the interpreter does.
  using Compiled =
      std::function<CompiledPlan(int rank, const executor::DeviceVariant& variant, DataType dtype, ReduceOp op)>;

  HostPlan(std::shared_ptr<const plan::Plan> plan, executor::DeviceLimits limits = {64, std::size_t{1} << 20})
      : ranks_(static_cast<int>(plan->ranks.size())), worlds(ranks_) {
    for (int r = 0; r < ranks_; ++r) {
      plans.push_back(std::make_unique<executor::DevicePlan>(plan, r, limits));
      memory_.push_back(aligned(plans.back()->memory_bytes()));
      const std::vector<std::byte> image = plans.back()->state();
      states_.push_back(aligned(image.size()));
      std::memcpy(states_.back().get(), image.data(), image.size());
    }
  }

  int ranks() const { return ranks_; }
  executor::DeviceMemory placement(int r) const {
    executor::DeviceMemory placed;
    for (const Bytes& memory : memory_) placed.ranks.push_back(memory.get());
    placed.state = states_[static_cast<std::size_t>(r)].get();
    return placed;
  }
  // Of all ranks' next invocations, as if so many had been.
  void set_invocation(std::uint64_t number) {
    for (int r = 0; r < ranks_; ++r) {
      for (int b = 0; b < plan(r).blocks(); ++b) invocations(r)[b] = number;
    }
  }

  // One call, with segments as a communicator cuts it.
  void run(const std::vector<PlanCall>& calls, std::size_t block_bytes, DataType dtype, ReduceOp op,
           const PlanHow& how = {}, const Compiled& compiled = {}) {
    const auto [workers, silent, fingerprint, ticket, wanted, other, idle, only, rounds, instead] = how;
    const bool mapped = wanted && can_be_mapped(calls, block_bytes);
    const auto variant = [&](int r, std::size_t bytes) {
      executor::DeviceVariant made =
          variant_of(plan(r).plan(), r, calls[static_cast<std::size_t>(r)], bytes, block_bytes, op);
      made.mapped_input = mapped && plan(r).maps_input();
      made.mapped_output = mapped && plan(r).maps_output();
      return made;
    };
    const std::size_t step = plan(0).segment_bytes(variant(0, 0));
    for (std::size_t begin = 0; begin < block_bytes; begin += std::min(step, block_bytes - begin)) {
      std::vector<executor::PlanArgs> args;
      std::vector<executor::DeviceRecords> records;
      std::vector<CompiledPlan> chosen;
      for (int r = 0; r < ranks_; ++r) {
        const executor::DeviceVariant made = variant(r, std::min(step, block_bytes - begin));
        records.push_back(plan(r).records(made, placement(r)));
        args.push_back(args_of(r, calls[static_cast<std::size_t>(r)], begin, block_bytes, dtype, op,
                               fingerprint + (r == other ? 1 : 0)));
        if (made.mapped()) args.back().peers = peers_of(r, calls, begin, block_bytes, instead);
        args.back().ticket = ticket;
        chosen.push_back(compiled ? compiled(r, made, dtype, op) : nullptr);
      }
      const auto run_one = [&](int r, int b) {
        const executor::PlanArgs& a = args[static_cast<std::size_t>(r)];
        const int blocks = plan(r).blocks();
        if (const CompiledPlan compiled_plan = chosen[static_cast<std::size_t>(r)]; compiled_plan != nullptr) {
          const executor::CompiledArgs given = compiled_args(r, a);
          run_block(
              std::max(workers, 1), [&](const ThreadTeam& team) { compiled_plan(team, worlds.world(r), given); }, b,
              blocks);
          return;
        }
        if (workers == 0) {
          return with_reducer(dtype, op, [&]<class R>() { run_plan<R>(SerialTeam{b, blocks}, worlds.world(r), a); });
        }
        run_block(
            workers,
            [&](const ThreadTeam& team) {
              with_reducer(dtype, op, [&]<class R>() { run_plan<R>(team, worlds.world(r), a); });
            },
            b, blocks);
      };
      // As a stream runs the kernels of a rank: one after another, the blocks of each at once.
      const auto run_rank = [&](int r) {
        for (int round = 0; round < rounds; ++round) {
          std::vector<std::thread> threads;
          for (int b = 0; b < plan(r).blocks(); ++b) {
            if (only < 0 || b == only) threads.emplace_back(run_one, r, b);
          }
          for (std::thread& thread : threads) thread.join();
        }
      };
      std::vector<std::thread> threads;
      for (int r = 0; r < ranks_; ++r) {
        executor::PlanArgs& a = args[static_cast<std::size_t>(r)];
        const executor::DeviceRecords& made = records[static_cast<std::size_t>(r)];
        a.ops = made.ops.data();
        a.operands = made.operands.data();
        a.blocks = made.blocks.data();
      }
      for (int r = 0; r < ranks_; ++r) {
        if (r == idle) {
          threads.emplace_back([&, r] { announce(r, args[static_cast<std::size_t>(r)]); });
        } else if (r != silent) {
          threads.emplace_back(run_rank, r);
        }
      }
      for (std::thread& thread : threads) thread.join();
    }
  }

 private:
  // What a call of rank `r` does around its plan's blocks.
  void announce(int r, const executor::PlanArgs& args) {
    const SerialTeam team{0, plan(r).blocks()};
    const DeviceWorld world = worlds.world(r);
    BlockCall<SerialTeam> call(team, world, args.fingerprint, args.ticket);
    if (!call.enter()) return;
    call.check_headers();
    call.leave();
  }

  struct Free {
    void operator()(std::byte* memory) const noexcept { std::free(memory); }
  };
  using Bytes = std::unique_ptr<std::byte, Free>;
  static Bytes aligned(std::size_t bytes) {
    const std::size_t whole = (bytes + 4095) / 4096 * 4096;
    auto* memory = static_cast<std::byte*>(std::aligned_alloc(4096, whole));
    std::memset(memory, 0, whole);
    return Bytes(memory);
  }

  // As CudaCommunicatorImpl::plan_place() decides, of tensors that are all registered.
  bool can_be_mapped(const std::vector<PlanCall>& calls, std::size_t block_bytes) {
    const executor::DevicePlan& first = plan(0);
    if (!first.maps_input() && !first.maps_output()) return false;
    const plan::Shape shape = plan::shape_of(first.plan());
    const std::size_t in = static_cast<std::size_t>(shape.blocks[0]) * block_bytes;
    const std::size_t out = static_cast<std::size_t>(shape.blocks[1]) * block_bytes;
    for (const PlanCall& call : calls) {
      if (call.input == nullptr || call.output == nullptr) return false;
      const bool overlap = call.input < call.output + out && call.output < call.input + in;
      if (overlap && first.maps_input() && first.maps_output()) return false;
    }
    return true;
  }

  executor::PeerBuffers peers_of(int own, const std::vector<PlanCall>& calls, std::size_t begin, std::size_t whole,
                                 std::byte* instead) {
    executor::PeerBuffers peers;
    peers.stride = whole;
    peers.agreed =
        reinterpret_cast<std::uint64_t*>(states_[static_cast<std::size_t>(own)].get() + plan(own).agreed_offset());
    for (int r = 0; r < ranks_; ++r) {
      const PlanCall& call = calls[static_cast<std::size_t>(r)];
      const bool others = instead != nullptr && r != own;
      if (plan(r).maps_input()) peers.at[r] = (others ? instead : call.input) + begin;
      if (plan(r).maps_output()) peers.at[device::kMaxRanks + r] = (others ? instead : call.output) + begin;
    }
    return peers;
  }

  executor::DevicePlan& plan(int r) { return *plans[static_cast<std::size_t>(r)]; }
  std::uint64_t* invocations(int r) {
    return reinterpret_cast<std::uint64_t*>(states_[static_cast<std::size_t>(r)].get());
  }

  executor::CompiledArgs compiled_args(int r, const executor::PlanArgs& interpreted) const {
    executor::CompiledArgs args;
    const executor::DeviceMemory placed = placement(r);
    std::copy(placed.ranks.begin(), placed.ranks.end(), args.memory);
    args.state = placed.state;
    std::copy(std::begin(interpreted.user), std::end(interpreted.user), args.user);
    args.peers = interpreted.peers;
    args.fingerprint = interpreted.fingerprint;
    args.ticket = interpreted.ticket;
    return args;
  }

  executor::PlanArgs args_of(int r, const PlanCall& call, std::size_t begin, std::size_t whole, DataType dtype,
                             ReduceOp op, std::uint32_t fingerprint) {
    executor::PlanArgs args;
    const plan::Shape shape = plan::shape_of(plan(r).plan());
    const std::byte* sides[] = {call.input, call.output};
    for (std::size_t side = 0; side < 2; ++side) {
      for (std::int32_t b = 0; sides[side] != nullptr && b < shape.blocks[side]; ++b) {
        args.user[side * executor::kUserBlocks + static_cast<std::size_t>(b)] =
            const_cast<std::byte*>(sides[side]) + static_cast<std::size_t>(b) * whole + begin;
      }
    }
    args.invocations = invocations(r);
    args.slots = reinterpret_cast<std::uint64_t*>(states_[static_cast<std::size_t>(r)].get() + plan(r).slots_offset());
    args.fingerprint = fingerprint + static_cast<std::uint32_t>(begin);
    args.halves = plan(r).halves();
    args.spec.dtype = dtype;
    args.spec.op = op == ReduceOp::kAvg ? ReduceOp::kSum : op;
    args.spec.divisor = ranks_;
    return args;
  }

  int ranks_;
  std::vector<Bytes> memory_, states_;

 public:
  HostRanks worlds;
  std::vector<std::unique_ptr<executor::DevicePlan>> plans;
};

}  // namespace tutti::cuda::test
