// The plans of one communicator on its GPU: their memory, and the records of each size. Which calls they serve is in
// plan_table.h.
//
// Memory of a plan is exchanged when the plan is added, collectively, and never grows. Records are made and uploaded at
// the first call of a size, also beside a capture and beside kernels that wait; they are kept as long as the
// communicator, or until there are too many of them and no graph may hold any.
//
// Ownership: owns its memory; graphs that hold its kernels share it. Thread rule: under the communicator's mutex.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algorithm/cuda/native_args.h"
#include "channel/cuda/gpu_group.h"
#include "communicator/cuda/compiled_plans.h"
#include "communicator/cuda/plan_table.h"
#include "communicator/cuda/registrations.h"
#include "communicator/cuda/twin_trial.h"
#include "executor/cuda/compiled_args.h"
#include "executor/cuda/device_plan.h"

namespace tutti::cuda {

// A call, and the plan that runs it.
struct PlannedCall {
  const TablePlan& plan;
  Call call;
  // Where the tensors lie that peers reach into; null: the plan's own memory stands for them.
  const DirectPlace* place = nullptr;
};

// What is launched where the plan is interpreted.
struct InterpretedCall {
  int cluster = 1;  // blocks of the GPU for each thread block: executor::cluster_of()
  executor::PlanArgs args;
};

class DevicePlans {
  // Where a plan of the table lies.
  struct Placed {
    std::shared_ptr<SymmetricMemory> memory;
    std::size_t offset = 0;
    std::shared_ptr<std::byte> state;
    std::string compiled_name;
  };

 public:
  // New plans with all that they need.
  class Addition {
    friend class DevicePlans;
    std::vector<std::unique_ptr<TablePlan>> plans_;
    std::map<const TablePlan*, Placed> placed_;
  };

  DevicePlans(const GpuGroup& group, const CompiledPlans::Options& compile);
  ~DevicePlans();
  DevicePlans(const DevicePlans&) = delete;
  DevicePlans& operator=(const DevicePlans&) = delete;

  PlanTable& table() noexcept { return table_; }
  const PlanTable& table() const noexcept { return table_; }

  // Bytes of memory that all ranks map which these plans need; the same on all ranks.
  static std::size_t bytes_of(const std::vector<std::unique_ptr<TablePlan>>& plans) noexcept;
  // `memory`: so many bytes, zeroed; may be null for 0. Throws what allocation throws; until add() nothing has changed.
  Addition make(std::vector<std::unique_ptr<TablePlan>> plans, std::shared_ptr<SymmetricMemory> memory);
  // What was made last. Takes no memory.
  void add(Addition made);

  // Of a rank block; all segments but the last.
  std::size_t segment_bytes(const PlannedCall& planned) const;
  // What to launch for the bytes [begin, begin + segment) of each rank block: compiled, if it is, or interpreted.
  // `may_load`: as of CodeRequests::find().
  const CompiledPlans::Kernel* compiled(const PlannedCall& planned, std::size_t begin, bool may_load);
  executor::CompiledArgs compiled_args(const PlannedCall& planned, std::size_t begin) const;
  InterpretedCall interpreted(const PlannedCall& planned, std::size_t begin);
  // Of a kernel, which takes the whole call.
  NativeArgs native_args(const TablePlan& plan, const Call& call) const;
  CompiledPlans& compiled_plans() noexcept { return compiled_; }
  // Kernels may be launched cooperatively: all their blocks at once, or none yet. (Blocks that come one by one can be
  // kept from each other by other plans' that do, too.) CUDA does not say whether such kernels run beside each other,
  // as those of ranks that share a GPU must, and those of several communicators. So it is tried (twin_trial.h).
  bool together() const noexcept { return together_; }
  // "plan:NAME+compiled": of calls that ran so.
  const std::string& compiled_name(const TablePlan& plan) const { return placed_.at(&plan).compiled_name; }
  // A captured call's records are kept for its graph.
  void keep_records() noexcept { captured_ = true; }
  // The records are many, and no graph has any: drop() may be called once no kernel runs.
  bool crowded() const noexcept { return !captured_ && used_ > kMostRecordBytes; }
  void drop() noexcept;

 private:
  static constexpr std::size_t kMostRecordBytes = std::size_t{64} << 20;
  static constexpr std::size_t kChunkBytes = std::size_t{1} << 20;

  // On the device.
  struct Uploaded {
    const executor::DeviceOp* ops = nullptr;
    const executor::DeviceOperand* operands = nullptr;
    const executor::DeviceBlock* blocks = nullptr;
    int cluster = 1;  // executor::cluster_of()
  };
  using Key = std::pair<const TablePlan*, executor::DeviceVariant>;

  executor::DeviceVariant variant_of(const PlannedCall& planned, std::size_t bytes) const;
  // Of the segment that begins there.
  executor::DeviceVariant segment_of(const PlannedCall& planned, std::size_t begin) const;
  static void place_user(const PlannedCall& planned, std::size_t begin, const executor::DeviceVariant& variant,
                         std::byte* (&user)[2 * executor::kUserBlocks]);
  executor::PeerBuffers peers_of(const PlannedCall& planned, std::size_t begin) const;
  Twins try_together();
  void warn_of_blocks(const std::vector<std::unique_ptr<TablePlan>>& plans);
  void count_clusters(const GpuGroup& group);
  // The largest cluster of which the GPU has room for so many.
  int most_cluster(int blocks) const noexcept;
  const Uploaded& uploaded(const TablePlan& plan, const executor::DeviceVariant& variant);
  std::byte* take(std::size_t bytes);
  void upload(void* to, const void* from, std::size_t bytes);
  void release() noexcept;

  const int rank_, size_, device_;
  const Logger logger_;
  PlanTable table_;
  std::map<const TablePlan*, Placed> placed_;
  cudaStream_t stream_ = nullptr;
  struct Chunk {
    std::shared_ptr<std::byte> memory;
    std::size_t bytes = 0;
  };
  std::vector<Chunk> chunks_;          // of records; the last one in use is chunks_[chunk_]
  std::size_t chunk_ = 0, taken_ = 0;  // and of that, the bytes
  std::size_t used_ = 0;               // of all
  std::map<Key, Uploaded> uploaded_;
  bool captured_ = false;
  bool together_ = false;
  bool warned_ = false;   // that it is not
  int clusters_[4] = {};  // of 1 << index blocks, how many run at once; none where ranks share a GPU
  CompiledPlans compiled_;
};

}  // namespace tutti::cuda
