// The compiled plans of one communicator (algorithm/compiled): asked for at the first call of each size, type and
// operation, compiled on a thread, loaded when the device is quiet (quiet_device.h). Until then, and where one cannot
// be compiled, the interpreter serves: both do the same on the wire, so each rank goes over by itself.
//
// Ownership: owns the loaded code; graphs that hold its kernels keep it by what owns this. Thread rule: under the
// communicator's mutex.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "algorithm/compiled/plan_compiler.h"
#include "base/log.h"
#include "device/cuda/loaded_module.h"
#include "executor/cuda/emit.h"

namespace tutti::cuda {

enum class CompileMode {
  kOff,
  kOn,    // beside the calls
  kWait,  // the first call of a size waits for the compiler
};
// Throws InvalidArgument for another word than off, on or wait.
CompileMode parse_compile_mode(const std::string& text);

class CompiledPlans {
 public:
  struct Kernel {
    CUfunction function = nullptr;
    int workers = 0;
    int cluster = 1;
  };

  struct Options {
    CompileMode mode = CompileMode::kOn;
    int device = 0;
    std::string cache_folder;  // as of KernelStore
    std::string nvrtc;         // as of Nvrtc::load()
    Logger logger;
    int processors = 1;  // as of room_of()
    int sharers = 1;
  };

  explicit CompiledPlans(const Options& options);
  ~CompiledPlans();
  CompiledPlans(const CompiledPlans&) = delete;
  CompiledPlans& operator=(const CompiledPlans&) = delete;

  bool enabled() const noexcept { return mode_ != CompileMode::kOff; }
  // Null: not, or not yet.
  const Kernel* find(const std::shared_ptr<const executor::DevicePlan>& plan, const executor::EmitRequest& request);
  // Loads what is compiled. The device is quiet, and current.
  void load() noexcept;
  // What is not loaded never is: graphs replay what is. Waits for the compilation under way.
  void end_compiling() noexcept;
  // Before what it was loaded on is gone.
  void unload() noexcept;

 private:
  static constexpr std::size_t kMostKernels = 256;  // of other requests none is compiled

  using Key = std::tuple<const executor::DevicePlan*, executor::DeviceVariant, DataType, ReduceOp>;
  struct Item {
    std::shared_ptr<const CompiledPlanCode> code;
    std::shared_ptr<const executor::DevicePlan> plan;  // of the key
    std::unique_ptr<LoadedModule> module;
    Kernel kernel;
    bool given_up = false;
  };

  void load(Item& item) const;
  // It is neither loaded nor given up any more.
  void settle() noexcept;
  void give_up(Item& item);

  const CompileMode mode_;
  const Logger logger_;
  const int processors_, sharers_;
  PlanCompiler compiler_;
  std::map<Key, Item> items_;
  int open_ = 0;  // items that are neither loaded nor given up; QuietDevice has the sum of all
};

}  // namespace tutti::cuda
