// What compiled plans a communicator has asked its compiler for (algorithm/compiled): once for each plan, size, type
// and operation. Knows nothing of CUDA: compiled_plans.h loads what is ready.
//
// Ownership: owns the loaded code. Thread rule: under the communicator's mutex.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "algorithm/compiled/plan_compiler.h"
#include "base/log.h"
#include "communicator/cuda/plan_table.h"
#include "executor/cuda/emit.h"

namespace tutti::cuda {

enum class CompileMode {
  kOff,
  kOn,    // beside the calls
  kWait,  // the first call of a size waits for the compiler
};
// Throws InvalidArgument for another word than off, on or wait.
CompileMode parse_compile_mode(const std::string& text);

class CodeRequests {
 public:
  // Throws Error, saying why it cannot be loaded.
  using Load = std::function<std::unique_ptr<LoadedCode>(const CompiledPlanCode&, const executor::DevicePlan&)>;

  struct Options {
    CompileMode mode = CompileMode::kOn;
    std::string cache_folder;  // as of KernelStore
    std::string architecture;  // "sm_90"
    std::string nvrtc;         // as of Nvrtc::load()
    Logger logger;
  };

  explicit CodeRequests(const Options& options);
  CodeRequests(const CodeRequests&) = delete;
  CodeRequests& operator=(const CodeRequests&) = delete;

  bool enabled() const noexcept { return mode_ != CompileMode::kOff; }
  // What is loaded; null: not, or not yet. It is asked for where `may_load` says that code may still be loaded: else a
  // compiler would work, and in kWait a call would wait for it, in vain.
  const LoadedCode* find(const std::shared_ptr<const executor::DevicePlan>& plan, const executor::EmitRequest& request,
                         bool may_load);
  // By `load`, what is compiled.
  void load_ready(const Load& load) noexcept;
  // Forgets what is not loaded. What is being compiled is finished, and kept on disk.
  void drop_open() noexcept;
  // The same, and for good: nothing is compiled any more. Waits for the compilation under way.
  void end_compiling() noexcept;
  void clear() noexcept;
  // Asked for, and neither loaded nor given up.
  int open() const noexcept { return open_; }

 private:
  static constexpr std::size_t kMostKernels = 256;  // of other requests none is compiled

  using Key = std::tuple<const executor::DevicePlan*, executor::DeviceVariant, DataType, ReduceOp>;
  struct Item {
    std::shared_ptr<const CompiledPlanCode> code;
    std::shared_ptr<const executor::DevicePlan> plan;  // of the key
    std::unique_ptr<LoadedCode> loaded;
    bool given_up = false;
    bool is_open() const noexcept { return loaded == nullptr && !given_up; }
  };

  void count(int more) noexcept;
  void give_up(Item& item) noexcept;
  // That it is interpreted, `because`: a line that is left out where there is no memory for it.
  void tell(const Item& item, LogLevel level, const char* because, const char* why) const noexcept;

  const CompileMode mode_;
  const Logger logger_;
  PlanCompiler compiler_;
  std::map<Key, Item> items_;
  int open_ = 0;  // QuietDevice has the sum of all
};

}  // namespace tutti::cuda
