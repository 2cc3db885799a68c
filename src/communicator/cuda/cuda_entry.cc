// What programs ask of CUDA by name, in libtutti.so: the plug-in for it is found and asked.
#include "algorithm/cuda/choice.h"
#include "communicator/call_check.h"
#include "communicator/device_entry.h"
#include "device/cuda/cuda_reporter.h"
#include "tutti/cuda/capture.h"
#include "tutti/cuda/communicator.h"
#include "tutti/cuda/report.h"
#include "tutti/device/memory.cuh"

namespace tutti {

std::shared_ptr<CudaCommunicator> CudaCommunicator::create(std::shared_ptr<Store> store, const std::string& id,
                                                           int rank, int size, const CudaOptions& options) {
  check_group(rank, size);
  if (size > device::kMaxRanks) {
    throw_error(ErrorKind::kUnsupported, "a CUDA communicator has at most " + std::to_string(device::kMaxRanks) +
                                             " ranks, not " + std::to_string(size));
  }
  auto made = std::dynamic_pointer_cast<CudaCommunicator>(
      make_communicator("cuda", store_bootstrap(std::move(store), id, rank, size), options));
  if (made != nullptr) return made;
  throw_error(ErrorKind::kUnsupported, library() + " has no communicators of CUDA's");
}

std::string CudaCommunicator::library() { return device_registry().path_of("cuda"); }

void CudaCommunicator::load() { static_cast<void>(device_of_kind("cuda")); }

std::vector<std::string> CudaCommunicator::algorithms() { return cuda::algorithm_names(); }

std::vector<std::string> CudaCommunicator::algorithms(Collective collective) { return cuda::kernel_names(collective); }

std::shared_ptr<std::byte> make_cuda_memory(std::size_t bytes, int device) {
  if (bytes == 0) throw_error(ErrorKind::kInvalidArgument, "a buffer has at least one byte");
  return device_of_kind("cuda").make_memory(bytes, device);
}

void copy_cuda_memory(void* to, const void* from, std::size_t bytes) { device_of_kind("cuda").copy(to, from, bytes); }

bool cuda_is_capturing(int device, CudaStream stream) { return device_of_kind("cuda").is_capturing(device, stream); }

std::uint64_t cuda_capture_of(int device, CudaStream stream) {
  return device_of_kind("cuda").capture_of(device, stream);
}

void cuda_begin_thread(int device) { device_of_kind("cuda").begin_thread(device); }

void cuda_beside_captures(const std::function<void()>& action) { device_of_kind("cuda").beside_captures(action); }

CudaReport cuda_report() {
  CudaReport report;
  try {
    auto* const reporter = dynamic_cast<cuda::CudaReporter*>(&device_of_kind("cuda"));
    if (reporter != nullptr) report = reporter->report();
  } catch (const Error& e) {
    report.plugin_problem = e.what();
  }
  return report;
}

}  // namespace tutti
