// Devices of this process by their kind ("cuda"), for what libtutti.so itself does on them. All throw
// Error(kUnsupported) where there is no plug-in of the kind.
#pragma once

#include "device/device.h"

namespace tutti {

Device& device_of_kind(const std::string& kind);

// CudaCommunicator::create, on memory of devices of this kind, of the ranks of `bootstrap`.
std::shared_ptr<CudaCommunicator> make_communicator(const std::string& kind, const BootstrapPtr& bootstrap,
                                                    const CudaOptions& options);

}  // namespace tutti
