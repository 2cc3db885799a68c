// The compiled plans of one communicator (algorithm/compiled): asked for at the first call of each size, type and
// operation (code_requests.h), compiled on a thread, loaded when the device is quiet (quiet_device.h). Until then, and
// where one cannot be compiled, the interpreter serves: both do the same on the wire, so each rank goes over by itself.
//
// Ownership: owns the loaded code; graphs that hold its kernels keep it by what owns this. Thread rule: under the
// communicator's mutex.
#pragma once

#include <cuda.h>

#include <memory>
#include <string>

#include "base/log.h"
#include "communicator/cuda/code_requests.h"

namespace tutti::cuda {

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

  bool enabled() const noexcept { return requests_.enabled(); }
  // Null: not, or not yet. `may_load`: as of CodeRequests::find().
  const Kernel* find(const std::shared_ptr<const executor::DevicePlan>& plan, const executor::EmitRequest& request,
                     bool may_load);
  // Loads what is compiled. The device is quiet, and current.
  void load() noexcept;
  // What is not loaded never is: graphs replay what is. Waits for the compilation under way.
  void end_compiling() noexcept { requests_.end_compiling(); }
  // Nothing more will be loaded.
  void drop_open() noexcept { requests_.drop_open(); }
  // Before what it was loaded on is gone.
  void unload() noexcept { requests_.clear(); }

 private:
  struct Loaded;

  std::unique_ptr<LoadedCode> load(const CompiledPlanCode& code, const executor::DevicePlan& plan) const;

  const int processors_, sharers_;
  CodeRequests requests_;
};

}  // namespace tutti::cuda
