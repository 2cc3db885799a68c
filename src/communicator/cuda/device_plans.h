// The plans of one communicator on its GPU: which calls they serve, their memory, and the records of each size.
//
// Made with the communicator, collectively: memory of a plan is exchanged then and never grows. A plan that cannot run
// here gives way to the next algorithm, on all ranks alike, and says why. Records are made and uploaded at the first
// call of a size, also beside a capture and beside kernels that wait; they are kept as long as the communicator, or
// until there are too many of them and no graph may hold any.
//
// Ownership: owns its memory; graphs that hold its kernels share it. Thread rule: under the communicator's mutex; what
// refuses a call is const.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "algorithm/algorithm.h"
#include "algorithm/plan/plan_files.h"
#include "channel/cuda/gpu_group.h"
#include "executor/cuda/device_plan.h"

namespace tutti::cuda {

class DevicePlans {
 public:
  // Collective. Throws what allocation throws.
  DevicePlans(std::vector<PlanFile> files, GpuGroup& group, Store& store);
  ~DevicePlans();
  DevicePlans(const DevicePlans&) = delete;
  DevicePlans& operator=(const DevicePlans&) = delete;

  struct Entry {
    std::string name;  // "plan:NAME"
    Collective collective = Collective::kBarrier;
    std::shared_ptr<const plan::Plan> plan;
    plan::Shape shape;
    std::uint32_t identity = 0;                          // of what the plan says: part of what ranks compare
    std::string unfit;                                   // why it cannot run on these GPUs; empty: it can
    std::shared_ptr<const executor::DevicePlan> device;  // null if it is unfit
    std::size_t offset = 0;                              // of its memory
    std::byte* state = nullptr;
  };

  // The first that serves the call, or null.
  const Entry* choose(const Call& call) const;

  // What to launch for the bytes [begin, begin + segment) of each rank block.
  executor::PlanArgs args(const Entry& entry, const Call& call, std::size_t begin);
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
  };
  using Key = std::pair<const Entry*, executor::DeviceVariant>;

  std::string refusal(const Entry& entry, const Call& call) const;
  executor::DeviceVariant variant_of(const Entry& entry, const Call& call, std::size_t bytes) const;
  const Uploaded& uploaded(const Entry& entry, const executor::DeviceVariant& variant);
  std::byte* take(std::size_t bytes);
  std::byte* allocate(std::size_t bytes);
  void upload(void* to, const void* from, std::size_t bytes);
  void release() noexcept;

  const int rank_, size_, device_;
  std::vector<std::unique_ptr<Entry>> entries_;  // at addresses that last
  std::shared_ptr<SymmetricMemory> memory_;
  cudaStream_t stream_ = nullptr;
  std::vector<std::byte*> states_;
  struct Chunk {
    std::byte* memory = nullptr;
    std::size_t bytes = 0;
  };
  std::vector<Chunk> chunks_;          // of records; the last one in use is chunks_[chunk_]
  std::size_t chunk_ = 0, taken_ = 0;  // and of that, the bytes
  std::size_t used_ = 0;               // of all
  std::map<Key, Uploaded> uploaded_;
  bool captured_ = false;
};

}  // namespace tutti::cuda
