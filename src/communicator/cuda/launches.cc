// CudaCommunicator's launches: by the runtime or by the driver, together, as clusters, early.
#include <algorithm>
#include <utility>

#include "algorithm/cuda/kernels.h"
#include "communicator/cuda/cuda_communicator_impl.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/stream_capture.h"

namespace tutti::cuda {
namespace {

// Whether they have code for it: those that were compiled for sm_90 and later have, which run on no GPU before. And
// captures with such launches came with CUDA 12.3.
bool kernels_can_wait() {
  cudaFuncAttributes attributes{};
  check_cuda(cudaFuncGetAttributes(&attributes, plan_kernel_of(Reducer::kAny)), "cudaFuncGetAttributes");
  int driver = 0;
  check_cuda(cudaDriverGetVersion(&driver), "cudaDriverGetVersion");
  return attributes.ptxVersion >= 90 && driver >= 12'030;
}

}  // namespace

bool CudaCommunicatorImpl::may_launch_early() const {
  const DeviceGuard guard(group_->device());
  return group_->sharers() == 1 && kernels_can_wait();
}

// Whether a kernel may be launched while what precedes it ends: then two kernels of this communicator hold room on the
// GPU for a moment. Where both are small that is no more than a large one takes alone.
bool CudaCommunicatorImpl::comes_early(const Kernel& kernel, unsigned grid, bool captured) {
  const auto most = static_cast<unsigned>(std::min(8, group_->wanted_blocks() / 2));
  const unsigned before = std::exchange(last_grid_[captured ? 1 : 0], grid);
  return kernel.early && early_launches_ && grid <= most && before <= most;
}

// Where the capture has failed, its graph will never run: nobody has come to a part of the call.
void CudaCommunicatorImpl::end_incomplete(cudaStream_t stream, const std::string& why) noexcept {
  if (last_captured_) {
    try {
      if (capture_of(stream).id == 0) return;
    } catch (const std::exception&) {
      // Then it may still run.
    }
  }
  abort(why);
}

void CudaCommunicatorImpl::launch_kernel(Kernel kernel, int blocks, int workers, void* args, cudaStream_t stream,
                                         bool captured) {
  void* parameters[] = {const_cast<DeviceWorld*>(&group_->world()), args};
  const auto cluster = static_cast<unsigned>(kernel.cluster);
  const auto grid = static_cast<unsigned>(blocks) * cluster, threads = static_cast<unsigned>(workers + kControlThreads);
  const bool early = comes_early(kernel, grid, captured);
  if (kernel.function != nullptr) {
    CUlaunchAttribute how[3] = {};
    CUlaunchConfig config{grid, 1, 1, threads, 1, 1, 0, stream, how, 0};
    if (kernel.together) {
      how[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
      how[config.numAttrs++].value.cooperative = 1;
    }
    if (cluster > 1) {
      how[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
      how[config.numAttrs++].value.clusterDim = {cluster, 1, 1};
    }
    if (early) {
      how[config.numAttrs].id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
      how[config.numAttrs++].value.programmaticStreamSerializationAllowed = 1;
    }
    check_driver(driver().launch_kernel(&config, kernel.function, parameters, nullptr), "cuLaunchKernelEx");
    return;
  }
  cudaLaunchAttribute how[3] = {};
  cudaLaunchConfig_t config{dim3(grid), dim3(threads), 0, stream, how, 0};
  if (kernel.together) {
    how[config.numAttrs].id = cudaLaunchAttributeCooperative;
    how[config.numAttrs++].val.cooperative = 1;
  }
  if (cluster > 1) {
    how[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
    how[config.numAttrs++].val.clusterDim = {cluster, 1, 1};
  }
  if (early) {
    how[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    how[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
  }
  check_cuda(cudaLaunchKernelExC(&config, kernel.symbol, parameters), "cudaLaunchKernelExC");
}

}  // namespace tutti::cuda
