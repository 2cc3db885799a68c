// A plug-in for the registry's tests. FAKE_NAME and FAKE_ABI come from the build: libtutti_fake.so is right,
// libtutti_old.so claims another ABI.
#include <cstdlib>
#include <cstring>

#include "device/registry.h"

namespace {

class FakeDevice final : public tutti::Device {
 public:
  std::string_view name() const noexcept override { return FAKE_NAME; }
  void* allocate(std::size_t bytes) override { return std::malloc(bytes); }
  void deallocate(void* data, std::size_t /*bytes*/) noexcept override { std::free(data); }
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override { std::memcpy(dst, src, bytes); }
};

constexpr tutti::DevicePlugin kPlugin{FAKE_ABI, FAKE_NAME, []() -> tutti::Device* { return new FakeDevice; },
                                      [](tutti::Device* device) noexcept { delete device; }};

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
