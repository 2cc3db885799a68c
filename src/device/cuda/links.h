// What the driver says of the links between the GPUs of this machine.
#pragma once

#include <string>

#include "tutti/cuda/report.h"

namespace tutti::cuda {

// How device `from` of this process reaches the memory of its device `to`.
CudaReach reach_of(int from, int to);
// Whether `device` may count on native atomics, and with them on lines that are stored whole, over its link to the GPU
// with these 16 bytes of UUID. False where the driver cannot be asked, because this process does not see that GPU
// (CUDA_VISIBLE_DEVICES).
bool has_native_atomics(int device, const std::string& uuid);

}  // namespace tutti::cuda
