// Messages on CUDA tensors that are sent as one: those between startCoalescing and endCoalescing, or a single one.
#pragma once

#include <c10/core/Device.h>

#include <memory>
#include <vector>

#include "aten/tensors.h"
#include "tutti/stream_communicator.h"

namespace tutti::face {

// Thread rule: belongs to the thread that collects it.
struct CudaBatch {
  explicit CudaBatch(c10::Device d) : device(d) {}

  c10::Device device;
  std::vector<DeviceMessage> messages;
  std::vector<std::unique_ptr<Prepared>> prepared;
  std::vector<at::Tensor> tensors;  // the caller's
};

}  // namespace tutti::face
