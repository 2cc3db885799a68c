// A plug-in for CUDA whose device memory is the host's: its communicators make every call by a Communicator on CPUs, at
// once, so that what lies above a plug-in is tested without a GPU. Like the real one it meets the other ranks under
// kCudaTopic first, and takes plans from files and from programs.
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "algorithm/plan/plan_files.h"
#include "algorithm/plan/verdict_store.h"
#include "bootstrap/exchange.h"
#include "support/cuda_communicators.h"
#include "tutti/device/channel.cuh"
#include "tutti/device/port.cuh"

namespace {

using namespace tutti;

// On one stream everything fails.
bool fails(CudaStream stream) { return stream == reinterpret_cast<CudaStream>(std::uintptr_t{0xfa11}); }
// One stream is always being captured.
bool captures(CudaStream stream) { return stream == reinterpret_cast<CudaStream>(std::uintptr_t{0xca97}); }

// Of the ranks of a process: each rank sees its own only.
class HostMemory final : public CudaMemory {
 public:
  explicit HostMemory(std::size_t bytes) : memory_(bytes) {}
  std::size_t bytes() const noexcept override { return memory_.size(); }
  std::byte* data(int) const noexcept override { return const_cast<std::byte*>(memory_.data()); }
  device::MemoryChannel channel(int, int) const override { throw_error(ErrorKind::kUnsupported, "no channels"); }
  device::PortChannel port(int, int) override { throw_error(ErrorKind::kUnsupported, "no ports"); }
  std::uint32_t port_memory() override { return 0; }

 private:
  std::vector<std::byte> memory_;
};

class PluginCommunicator final : public test::HostCommunicator {
 public:
  PluginCommunicator(Store& store, const std::string& id, int rank, int size, const CudaOptions& options)
      : HostCommunicator(store, id, rank, size, options), messages_only_(options.messages_only) {}
  void run(const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override {
    if (messages_only_) throw_error(ErrorKind::kInternal, "a collective of a pair");
    HostCommunicator::run(call, stream, timeout);
  }
  std::shared_ptr<CudaMemory> allocate(Store&, const std::string&, std::size_t bytes) override {
    return std::make_shared<HostMemory>(bytes);
  }
  bool is_capturing(CudaStream stream) const override { return captures(stream); }

 private:
  const bool messages_only_;
};

class HostDevice final : public test::BareDevice {
 public:
  bool is_capturing(int, CudaStream stream) override { return captures(stream); }
  void synchronize_stream(int, CudaStream stream) override {
    if (fails(stream)) throw_error(ErrorKind::kInternal, "what made the array has failed");
  }
  void copy(void* dst, const void* src, std::size_t bytes) const noexcept override { std::memcpy(dst, src, bytes); }
  std::shared_ptr<CudaCommunicator> make_communicator(Store& store, const std::string& id, int rank, int size,
                                                      const CudaOptions& options) override {
    static_cast<void>(load_plans(options.plan_path, size, cache_folder(*options.config)));
    exchange(store, id, kCudaTopic, rank, size, "", options.timeout);
    return std::make_shared<PluginCommunicator>(store, id, rank, size, options);
  }
};

constexpr DevicePlugin kPlugin = test::plugin_of<HostDevice>("cuda");

}  // namespace

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &kPlugin;
}
