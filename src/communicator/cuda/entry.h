// Devices of this process by their kind ("cuda"), for what libtutti.so itself does on them. All throw
// Error(kUnsupported) where there is no plug-in of the kind.
#pragma once

#include "device/device.h"

namespace tutti {

Device& device_of_kind(const std::string& kind);

// CudaCommunicator::create, on memory of devices of this kind.
std::shared_ptr<CudaCommunicator> make_communicator(const std::string& kind, Store& store, const std::string& id,
                                                    int rank, int size, const CudaOptions& options);

}  // namespace tutti
