// Captures of CUDA graphs, for those who link no CUDA: libtutti_cuda.so is asked.
//
// Thread rule: all from any thread. All throw Error(kUnsupported) without the plug-in.
#pragma once

#include <cstdint>
#include <functional>

#include "tutti/cuda/communicator.h"

namespace tutti {

// Whether work on `stream` becomes part of a graph now; of `device`, -1 for the current one. Needs no communicator.
bool cuda_is_capturing(int device, CudaStream stream);

// The number of that capture, which no other one of the process has; 0: none.
std::uint64_t cuda_capture_of(int device, CudaStream stream);

// For threads of one's own: until this thread ends, it may allocate and ask for events while another thread captures in
// the global mode, as torch does; else such a call would break that capture. The thread works for `device` alone, which
// becomes its current one; -1: for any.
void cuda_begin_thread(int device);

// Runs `action` so that it may do what such a thread may: for threads that go on with other things.
void cuda_beside_captures(const std::function<void()>& action);

}  // namespace tutti
