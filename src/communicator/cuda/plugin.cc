// What libtutti_cuda.so exports.
#include <cuda_runtime_api.h>

#include <atomic>

#include "algorithm/cuda/choice.h"
#include "communicator/cuda/cuda_communicator_impl.h"
#include "communicator/cuda/cuda_stream_work.h"
#include "communicator/cuda/quiet_device.h"
#include "communicator/cuda/stream_order.h"
#include "communicator/nccl/nccl_communicator.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/pool_memory.h"
#include "device/cuda/relaxed_capture.h"
#include "device/cuda/stream_capture.h"
#include "device/registry.h"

namespace tutti::cuda {
namespace {

// How many there are. Throws Error(kUnsupported) if none can be used.
int require_device() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  static_cast<void>(cudaGetLastError());
  throw_error(ErrorKind::kUnsupported, std::string("no CUDA device is usable here: ") +
                                           (error != cudaSuccess ? cudaGetErrorString(error) : "none found"));
}

// What the kernels of Tutti's own do not serve, the same on all ranks; empty: they serve the group.
std::string not_served(int size, const DeviceOptions& options) {
  if (!options.one_host) return "its ranks are on several hosts";
  if (size <= device::kMaxRanks) return {};
  return "it has " + std::to_string(size) + " ranks, more than " + std::to_string(device::kMaxRanks);
}

class CudaDevice final : public CudaMemoryDevice {
 public:
  StreamCommunicatorPtr make_communicator(const BootstrapPtr& bootstrap, const DeviceOptions& options) override {
    const int count = require_device();
    int device = options.device;
    if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    if (device >= count) {
      throw_error(ErrorKind::kInvalidArgument,
                  "CUDA device " + std::to_string(device) + " of " + std::to_string(count) + " does not exist");
    }
    const RelaxedCapture relaxed;  // a group's first call may be captured
    release_retired();
    QuietDevice::of_process().give_back_if_quiet();
    if (const std::string why = not_served(bootstrap->size(), options); !why.empty()) {
      return std::make_shared<NcclCommunicator>(bootstrap, options, std::make_shared<CudaStreamWork>(device),
                                                nccl_library(options.config->nccl_library), why);
    }
    return std::make_shared<CudaCommunicatorImpl>(bootstrap, options, device,
                                                  first_sequence_.load(std::memory_order_relaxed));
  }

  std::shared_ptr<std::byte> make_memory(std::size_t bytes, int device) override {
    require_device();
    if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    return make_pool_memory(device, bytes);
  }

  int index_of(const void* address) noexcept override {
    cudaPointerAttributes attributes{};
    if (cudaPointerGetAttributes(&attributes, address) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      return -1;
    }
    const bool here = attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged;
    return here ? attributes.device : -1;
  }

  bool is_capturing(int device, CudaStream stream) override {
    if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const DeviceGuard guard(device);
    return cuda::is_capturing(static_cast<cudaStream_t>(stream));
  }

  std::uint64_t capture_of(int device, CudaStream stream) override {
    if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const DeviceGuard guard(device);
    return cuda::capture_of(static_cast<cudaStream_t>(stream)).id;
  }

  void synchronize_stream(int device, CudaStream stream) override {
    if (device < 0) check_cuda(cudaGetDevice(&device), "cudaGetDevice");
    const DeviceGuard guard(device);  // handles of default streams mean those of the current device
    wait_for_stream(static_cast<cudaStream_t>(stream));
  }

  void begin_thread(int device) override {
    if (device >= 0) check_cuda(cudaSetDevice(device), "cudaSetDevice");
    relax_captures_of_thread();
  }

  void beside_captures(const std::function<void()>& action) override {
    const RelaxedCapture relaxed;
    action();
  }

  void begin_at(std::uint64_t first_sequence) noexcept override {
    first_sequence_.store(first_sequence, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::uint64_t> first_sequence_{0};  // relaxed: set while no communicator is being made
};

constexpr DevicePlugin kPlugin{kDeviceAbiVersion, "cuda", []() -> Device* { return new CudaDevice; },
                               [](Device* device) noexcept { delete device; }};

}  // namespace
}  // namespace tutti::cuda

extern "C" __attribute__((visibility("default"))) const tutti::DevicePlugin* tutti_device_plugin() noexcept {
  return &tutti::cuda::kPlugin;
}
