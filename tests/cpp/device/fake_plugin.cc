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
  bool supports(tutti::DataType /*dtype*/, tutti::ReduceOp op) const noexcept override {
    return op == tutti::ReduceOp::kBxor;
  }
  void reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
              tutti::DataType /*dtype*/, tutti::ReduceOp /*op*/, int /*divisor*/) const noexcept override {
    for (std::size_t i = 0; i < count; ++i) {
      unsigned char v = 0;
      for (int s = 0; s < n_srcs; ++s)
        v = static_cast<unsigned char>(v ^ static_cast<const unsigned char*>(srcs[s])[i]);
      for (int d = 0; d < n_dsts; ++d) static_cast<unsigned char*>(dsts[d])[i] = v;
    }
  }
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override { std::memcpy(dst, src, bytes); }
  void synchronize() override {}
};

constexpr tutti::DevicePlugin kPlugin{FAKE_ABI, FAKE_NAME, []() -> tutti::Device* { return new FakeDevice; },
                                      [](tutti::Device* device) noexcept { delete device; }};

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
