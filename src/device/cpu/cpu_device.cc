// The CPU as a Device: aligned heap memory.
#include <cstdlib>
#include <new>

#include "device/cpu/kernels.h"
#include "device/device.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// A cache line, and the widest vector.
constexpr std::size_t kAlignment = 64;

class CpuDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "cpu"; }

  void* allocate(std::size_t bytes) override {
    void* data = ::operator new (bytes, std::align_val_t{kAlignment}, std::nothrow);
    if (data == nullptr) {
      throw_error(ErrorKind::kExhausted, "no memory for " + std::to_string(bytes) + " bytes on the CPU");
    }
    return data;
  }
  void deallocate(void* data, std::size_t /*bytes*/) noexcept override {
    ::operator delete (data, std::align_val_t{kAlignment});
  }

  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override { cpu::copy(dst, src, bytes); }
};

}  // namespace

Device& cpu_device() noexcept {
  // Never destroyed: threads may still use it while static objects go.
  static CpuDevice* const device = new CpuDevice;
  return *device;
}

}  // namespace tutti
