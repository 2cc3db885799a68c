#include "nccl/driver.h"

#include <dlfcn.h>

#include <cstdint>
#include <string>

#include "tutti/error.h"

namespace tutti::nccl {
namespace {

void check(int result, const char* call) {
  if (result == 0) return;
  throw_error(ErrorKind::kInternal, std::string(call) + " failed: CUDA error " + std::to_string(result));
}

unsigned long long address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

void Driver::copy(int device, void* to, const void* from, std::size_t bytes, cudaStream_t stream) const {
  int handle = 0;
  void* context = nullptr;
  check(get_device_(&handle, device), "cuDeviceGet");
  // The runtime's context; retained once more each time, since it is never released before the process ends.
  check(retain_context_(&context, handle), "cuDevicePrimaryCtxRetain");
  check(push_context_(context), "cuCtxPushCurrent");
  const int result = copy_(address(to), address(from), bytes, stream);
  void* popped = nullptr;
  static_cast<void>(pop_context_(&popped));
  check(result, "cuMemcpyDtoDAsync");
}

const Driver* driver() {
  static const Driver* const found = []() -> const Driver* {
    void* const library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return nullptr;
    auto* const made = new Driver;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    const bool all = find(made->get_device_, "cuDeviceGet") &&
                     find(made->retain_context_, "cuDevicePrimaryCtxRetain") &&
                     find(made->push_context_, "cuCtxPushCurrent_v2") &&
                     find(made->pop_context_, "cuCtxPopCurrent_v2") && find(made->copy_, "cuMemcpyDtoDAsync_v2");
    if (all) return made;
    delete made;
    return nullptr;
  }();
  return found;
}

}  // namespace tutti::nccl
