#include "channel/cuda/stream_engine.h"

#include <string>

#include "device/cuda/cuda_check.h"
#include "device/cuda/driver.h"
#include "device/cuda/relaxed_capture.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

void check_stream_writes(int device) {
  CUdevice handle{};
  check_driver(driver().device_get(&handle, device), "cuDeviceGet");
  int can = 0;
  check_driver(driver().device_get_attribute(&can, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, handle),
               "cuDeviceGetAttribute");
  if (can == 0) {
    throw_error(ErrorKind::kUnsupported, "ports need cuStreamWriteValue64, which device " + std::to_string(device) +
                                             " does not offer here: use memory channels");
  }
}

}  // namespace

StreamEngine::StreamEngine(int device, int ranks) : device_(device), lanes_(static_cast<std::size_t>(ranks)) {
  check_stream_writes(device);
  try {
    for (Lane& lane : lanes_) {
      lane.stream = make_urgent_stream();
      for (cudaEvent_t& event : lane.events) {
        check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
      }
    }
  } catch (...) {
    release();
    throw;
  }
}

StreamEngine::~StreamEngine() { release(); }

void StreamEngine::release() noexcept {
  for (Lane& lane : lanes_) {
    // Copies under way are local operations: this ends.
    if (lane.stream != nullptr) static_cast<void>(cudaStreamSynchronize(lane.stream));
    for (cudaEvent_t event : lane.events) {
      if (event != nullptr) static_cast<void>(cudaEventDestroy(event));
    }
    if (lane.stream != nullptr) static_cast<void>(cudaStreamDestroy(lane.stream));
  }
  lanes_.clear();
}

void StreamEngine::begin_thread() {
  check_cuda(cudaSetDevice(device_), "cudaSetDevice");
  // Else a query here would break a capture that another thread makes in global mode, as torch does.
  relax_captures_of_thread();
}

void StreamEngine::copy(int peer, std::byte* to, const std::byte* from, std::size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, lanes_[static_cast<std::size_t>(peer)].stream),
             "cudaMemcpyAsync");
}

void StreamEngine::store(int peer, std::uint64_t* word, std::uint64_t value) {
  check_driver(driver().stream_write_value64(lanes_[static_cast<std::size_t>(peer)].stream,
                                             reinterpret_cast<CUdeviceptr>(word), value, CU_STREAM_WRITE_VALUE_DEFAULT),
               "cuStreamWriteValue64");
}

bool StreamEngine::mark(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  if (lane.marked - lane.reached >= kMarks) return false;
  check_cuda(cudaEventRecord(lane.events[lane.marked % kMarks], lane.stream), "cudaEventRecord");
  ++lane.marked;
  return true;
}

int StreamEngine::take_reached(int peer) {
  Lane& lane = lanes_[static_cast<std::size_t>(peer)];
  int fresh = 0;
  for (; lane.reached < lane.marked; ++lane.reached, ++fresh) {
    const cudaError_t state = cudaEventQuery(lane.events[lane.reached % kMarks]);
    if (state == cudaErrorNotReady) break;
    check_cuda(state, "cudaEventQuery");
  }
  return fresh;
}

void StreamEngine::finish() {
  const RelaxedCapture relaxed;  // also on a thread that is not the proxy's
  for (const Lane& lane : lanes_) check_cuda(cudaStreamSynchronize(lane.stream), "cudaStreamSynchronize");
}

}  // namespace tutti::cuda
