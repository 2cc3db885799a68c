// Algorithms that a user names: for one call, or for all calls of a communicator that they fit.
//
// A UserAlgorithm is made by the functions below; a communicator refuses classes of others. It belongs to no
// communicator: each makes what it needs of it (memory that its ranks map) at the first call that uses it. Thread rule:
// const after construction, shared.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/types.h"

namespace tutti {

// Calls outside of these are refused. 0 ranks: any number.
struct AlgorithmLimits {
  std::uint64_t min_bytes = 0;  // of one rank's block
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
  int ranks = 0;
  int ranks_per_host = 0;
};

class UserAlgorithm {
 public:
  enum class Kind { kPlan, kPlugin, kKernel, kLibrary };

  virtual ~UserAlgorithm() = default;

  virtual Kind kind() const noexcept = 0;
  virtual const std::string& name() const noexcept = 0;
  // As the plan or plug-in spells it ("allreduce"), and which of Tutti's it is: none for a plan of something else,
  // which can be proven and not run.
  virtual const std::string& collective_name() const noexcept = 0;
  virtual std::optional<Collective> collective() const noexcept = 0;
  // Of plans: made for a call in which input and output are one buffer. Either kind of call runs.
  virtual bool in_place() const noexcept { return false; }
  // What the algorithm reduces by when a caller does not say; none where the caller must.
  virtual std::optional<ReduceOp> default_op() const noexcept { return std::nullopt; }
  virtual int root() const noexcept { return -1; }

  const AlgorithmLimits& limits() const noexcept { return limits_; }
  // Of all that shapes what it does, limits included; never 0. Ranks compare it in every call.
  std::uint64_t identity() const noexcept;

  // The same algorithm for other sizes.
  virtual std::shared_ptr<const UserAlgorithm> with_limits(const AlgorithmLimits& limits) const = 0;

 protected:
  explicit UserAlgorithm(const AlgorithmLimits& limits) noexcept : limits_(limits) {}
  // identity() without the limits.
  virtual std::uint64_t content() const noexcept = 0;

 private:
  AlgorithmLimits limits_;
};

using UserAlgorithmPtr = std::shared_ptr<const UserAlgorithm>;

// Runs a plan (docs/plan-format.md). Reads and proves it; throws Error(kInvalidArgument) with what is wrong. `place`
// says where it is from. Its own range of sizes is cut by that of `limits`. Verdicts are kept in `cache_folder`, if
// any.
UserAlgorithmPtr plan_algorithm(const std::string& text, const std::string& place, const AlgorithmLimits& limits = {},
                                const std::string& cache_folder = {});

// What NVRTC compiles of a plug-in's kernels (include/tutti/plugin/kernel.cuh), on the machine that runs them.
struct KernelSource {
  std::string file;  // where it is from, for the compiler's messages
  std::string text;
  std::map<std::string, std::string> headers;  // the source's own, by the names that it includes them by
  std::vector<std::string> options;            // for the compiler
};

// The algorithms of a shared object that was built from a plug-in (include/tutti/plugin/algorithm.h). `content` tells
// plug-ins apart: a hash of the source and of how it was built. The object stays loaded for the life of the process.
// `kernels`: null where the source has none. Throws Error(kInvalidArgument) if the file is no plug-in.
struct PluginAlgorithm {
  std::string function;  // as its author calls it
  UserAlgorithmPtr algorithm;
};
std::vector<PluginAlgorithm> plugin_algorithms(const std::string& path, const std::string& content,
                                               std::shared_ptr<const KernelSource> kernels = nullptr);

// One of the library's own by the names of `tutti explain`; throws Error(kInvalidArgument) naming those that there are.
UserAlgorithmPtr library_algorithm(Collective collective, const std::string& name);
std::vector<std::string> library_algorithm_names(Collective collective);

// By which algorithm one call is to run. `extras` reach plug-ins on CPUs. `blocks` and `threads` are of a kernel's
// launch, the same on all ranks; 0: as many as the kernel says.
struct AlgorithmChoice {
  UserAlgorithmPtr algorithm;
  std::map<std::string, std::int64_t> extras;
  int blocks = 0;
  int threads = 0;
};

// What a selector function is asked.
struct AlgorithmRequest {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;  // of one rank's block
  int rank = 0;
  int ranks = 1;
  int ranks_per_host = 1;
  int root = -1;
  const void* input = nullptr;
  const void* output = nullptr;
};

// The algorithms that a user gives to a communicator. Without `choose` the first that fits a call takes it; with it,
// the one that it returns. Null leaves the call to the library. All ranks must give the same answers.
struct AlgorithmSet {
  std::vector<UserAlgorithmPtr> algorithms;
  std::function<UserAlgorithmPtr(const AlgorithmRequest&)> choose;

  bool empty() const noexcept { return algorithms.empty() && !choose; }
};

}  // namespace tutti
