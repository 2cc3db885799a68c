// What a UserAlgorithm is to the library: where the algorithm that a communicator runs is made. All that
// plan_algorithm(), plugin_algorithms() and library_algorithm() return are such.
//
// Thread rule: const after construction, shared.
#pragma once

#include <memory>
#include <string>

#include "algorithm/algorithm.h"
#include "algorithm/group_place.h"
#include "algorithm/plan/plan_files.h"
#include "tutti/user_algorithm.h"

namespace tutti {

// As TuttiPluginAlgorithm has it.
using PluginRefusal = const char* (*)(const char* dtype, const char* op, std::uint64_t block_bytes, std::int32_t ranks);

// Why a plug-in's algorithm cannot run a call of its collective, in main memory or as a kernel; null: it can.
// `refusal`: null where it has none.
const char* plugin_refusal(PluginRefusal refusal, const CallShape& shape) noexcept;

// A plug-in's kernel.
struct KernelAlgorithm {
  std::string function;  // as its author calls it: struct tutti::kernels::FUNCTION of the source
  Collective collective = Collective::kBarrier;
  std::uint64_t scratch_bytes = 0;  // of each rank
  int blocks = 1, threads = 32;     // of a launch that does not say
  PluginRefusal refusal = nullptr;
  std::shared_ptr<const KernelSource> source;
};

class AlgorithmSource : public UserAlgorithm {
 public:
  // For the communicator of `world`, which outlives it. Throws Error(kInvalidArgument, kUnsupported) saying why it
  // cannot run there.
  virtual std::shared_ptr<const Algorithm> make(const GroupPlace& world) const = 0;
  // Of a plan, which devices other than CPUs run by themselves; null for all else.
  virtual const PlanFile* plan_file() const noexcept { return nullptr; }
  // Of a plug-in with a kernel, which GPUs run; null for all else.
  virtual const KernelAlgorithm* kernel() const noexcept { return nullptr; }

 protected:
  using UserAlgorithm::UserAlgorithm;
};

// The plan of a file that has been proven (load_plans), as an algorithm like those that a program gives.
UserAlgorithmPtr plan_algorithm(const PlanFile& file);

}  // namespace tutti
