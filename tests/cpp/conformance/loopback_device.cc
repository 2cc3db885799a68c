// A device by the recipe of docs/contributing.md, as small as one can be: libtutti_loopback.so. Its memory is its own:
// what it gives out are no addresses of the host's, so whoever touches it there but by the device dies of it. Its
// communicators are those of the host.
#include <cstdint>

#include "support/cuda_communicators.h"

namespace {

using namespace tutti;

// No processor that Tutti runs on reaches such an address.
constexpr std::uintptr_t kFar = std::uintptr_t{1} << 52;

bool is_far(const void* data) noexcept { return (reinterpret_cast<std::uintptr_t>(data) & kFar) != 0; }

// Where memory of the device lies; the host's stays as it is, and so does null.
template <class T>
T* near(T* data) noexcept {
  return reinterpret_cast<T*>(reinterpret_cast<std::uintptr_t>(data) & ~kFar);
}

class LoopbackCommunicator final : public test::OnHost<test::Bare<StreamCommunicator>> {
 public:
  using OnHost::OnHost;
  void run(const Call& call, DeviceStream stream, std::chrono::milliseconds timeout) override {
    Call here = call;
    std::vector<void*> inputs = bring(here.input), outputs = bring(here.output);
    OnHost::run(here, stream, timeout);
  }
  void exchange(const std::vector<DeviceMessage>& messages, DeviceStream stream,
                std::chrono::milliseconds timeout) override {
    std::vector<DeviceMessage> here = messages;
    for (DeviceMessage& message : here) message.data = near(message.data);
    OnHost::exchange(here, stream, timeout);
  }

 private:
  // Keeps the pointers of a list of blocks.
  std::vector<void*> bring(Blocks& blocks) const {
    blocks.base = near(blocks.base);
    std::vector<void*> pointers;
    for (int r = 0; blocks.pointers != nullptr && r < size(); ++r) pointers.push_back(near(blocks.pointers[r]));
    if (!pointers.empty()) blocks.pointers = pointers.data();
    return pointers;
  }
};

class LoopbackDevice final : public Device {
 public:
  std::string_view name() const noexcept override { return "loopback"; }
  void* allocate(std::size_t bytes) override {
    return reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(cpu_device().allocate(bytes)) | kFar);
  }
  void deallocate(void* data, std::size_t bytes) noexcept override { cpu_device().deallocate(near(data), bytes); }
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override {
    cpu_device().copy(near(dst), near(src), bytes);
  }
  int index_of(const void* address) noexcept override { return is_far(address) ? 0 : -1; }
  StreamCommunicatorPtr make_communicator(const BootstrapPtr& bootstrap, const DeviceOptions& options) override {
    return std::make_shared<LoopbackCommunicator>(*bootstrap, options);
  }
};

constexpr DevicePlugin kPlugin = test::plugin_of<LoopbackDevice>("loopback");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
