// The plug-in of a CUDA that says, while it lets a thread do what ends other threads' captures, that it does.
#include <cstdlib>

#include "support/cuda_communicators.h"

namespace {

class CaptureDevice final : public tutti::test::BareDevice {
 public:
  void beside_captures(const std::function<void()>& action) override {
    ::setenv("TUTTI_TEST_BESIDE_CAPTURES", "1", 1);
    action();
    ::unsetenv("TUTTI_TEST_BESIDE_CAPTURES");
  }
};

constexpr tutti::DevicePlugin kPlugin = tutti::test::plugin_of<CaptureDevice>("cuda");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
