// NVIDIA's run-time compiler, if the machine has it: PyPI's nvidia-cuda-nvrtc, which PyTorch brings along, or a CUDA
// toolkit. It needs no GPU and no driver. Nothing links it.
//
// Thread rule: const members may be called from any thread.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/user_algorithm.h"

namespace tutti {

struct CompiledSource {
  std::string cubin;
  std::string log;  // what the compiler has said, the registers of each kernel included
};

class Nvrtc {
 public:
  // Loads `path`; empty: TUTTI_NVRTC's caller has none, so it is looked for beside the CUDA libraries that the process
  // has loaded, beside libtutti, and where the loader looks. Throws Unsupported, and says where it has looked.
  static Nvrtc load(const std::string& path);

  const std::string& path() const noexcept { return path_; }
  const std::string& version() const noexcept { return version_; }  // "13.0"
  // Also of the library's file: what is kept of one update of a release is not another's.
  const std::string& identity() const noexcept { return identity_; }

  // For `architecture`, such as "sm_90", with the headers of compiled_plan_headers(), and with those and the options of
  // `own`, if it is not null. Throws Unsupported with the compiler's log.
  CompiledSource compile(const std::string& source, const std::string& architecture,
                         const KernelSource* own = nullptr) const;
  // What beside source and architecture shapes a cubin.
  static std::string_view options() noexcept;

 private:
  struct Functions;
  Nvrtc() = default;

  std::shared_ptr<const Functions> functions_;  // of a library that is not unloaded
  std::string path_, version_, identity_;
};

}  // namespace tutti
