// Limits of the fixed-size tables in which MSCCL++'s executor keeps a thread block.
#include "plan/mscclpp_limits.h"

#include <algorithm>
#include <string>

#include "plan/operations.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::size_t kChannelsPerBlock = 16;  // and remote buffers, of each kind
constexpr std::size_t kChannelsPerOperation = 8;
constexpr std::size_t kOperandsPerSide = 10;
constexpr std::size_t kOperationsPerBlock = 64;  // pipelines and their bodies counted
constexpr std::size_t kOperationsPerPipeline = 16;
constexpr std::size_t kSemaphoresPerOperation = 16;
constexpr std::int32_t kBarriers = 16;
constexpr std::int32_t kThreadsPerBlock = 1024;
constexpr std::int64_t kUnitBytes = (std::int64_t{1} << 32) - 1;

void limit(bool fits, const std::string& path, const std::string& what) {
  if (!fits) throw_error(ErrorKind::kUnsupported, "plan: " + path + ": MSCCL++'s executor " + what);
}

void check_operation(const Operation& op, const std::string& path) {
  limit(op.kind != OpKind::kGroupLoadReduce, path, "has no \"glre\"; follow it by a \"gstore\" of the same range");
  limit(!op.fence, path + "/fence", "orders packets only");
  limit(!reduces(op.kind) || op.reduce == ReduceKind::kSum || op.reduce == ReduceKind::kAny, path + "/reduce_op",
        "always sums");
  const std::size_t operands = std::max(op.sources.size(), op.destinations.size());
  limit(operands <= kOperandsPerSide, path, "takes up to " + std::to_string(kOperandsPerSide) + " operands a side");
  limit(op.channel_ids.size() <= kChannelsPerOperation, path + "/channel_ids",
        "takes up to " + std::to_string(kChannelsPerOperation) + " channels an operation");
  limit(op.semaphore_ids.size() <= kSemaphoresPerOperation, path + "/semaphore_ids",
        "takes up to " + std::to_string(kSemaphoresPerOperation) + " semaphores an operation");
  limit(op.kind != OpKind::kBarrier || op.barrier_id < kBarriers, path + "/barrier_id",
        "has " + std::to_string(kBarriers) + " barriers");
  limit(op.body.size() <= kOperationsPerPipeline, path + "/ops",
        "repeats up to " + std::to_string(kOperationsPerPipeline) + " operations");
  limit(op.iteration.unit_bytes <= kUnitBytes, path + "/iter_context/unit_size", "counts bytes in 32 bits");
}

void check_block(const ThreadBlock& block, std::size_t rank, std::size_t index) {
  const std::string path = "/gpus/" + std::to_string(rank) + "/threadblocks/" + std::to_string(index);
  for (int kind = 0; kind < kChannelKindCount; ++kind) {
    limit(block.channels[kind].size() <= kChannelsPerBlock, path + "/channels",
          "holds " + std::to_string(kChannelsPerBlock) + " channels of a kind in a thread block");
    limit(block.remote_buffers[kind].size() <= kChannelsPerBlock, path + "/remote_buffer_refs",
          "holds " + std::to_string(kChannelsPerBlock) + " remote buffers of a kind in a thread block");
  }
  std::size_t count = 0;
  for (std::size_t i = 0; i < block.operations.size(); ++i) {
    const Operation& op = block.operations[i];
    check_operation(op, path_of(rank, index, i));
    for (std::size_t k = 0; k < op.body.size(); ++k) check_operation(op.body[k], path_of(rank, index, i, k));
    count += 1 + op.body.size();
  }
  limit(count <= kOperationsPerBlock, path + "/ops",
        "holds " + std::to_string(kOperationsPerBlock) + " operations in a thread block, not " + std::to_string(count));
}

}  // namespace

void check_mscclpp_limits(const Plan& plan) {
  limit(plan.threads_per_block <= kThreadsPerBlock, "/num_threads_per_block",
        "starts up to " + std::to_string(kThreadsPerBlock) + " threads a block");
  limit(!plan.writes_input, "/writes_input", "gives a plan the caller's own input, which this one writes");
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (std::size_t b = 0; b < plan.ranks[rank].blocks.size(); ++b) check_block(plan.ranks[rank].blocks[b], rank, b);
  }
}

}  // namespace tutti::plan
