// Devices of this process by their kind ("cuda"), for what libtutti.so itself does on them. All but the registry throw
// Error(kUnsupported) where there is no plug-in of the kind.
#pragma once

#include "device/device.h"
#include "device/registry.h"

namespace tutti {

DeviceRegistry& device_registry(const Config& config);
Device& device_of_kind(const std::string& kind);

// A communicator of the ranks of `bootstrap` on memory of devices of this kind, whose failures the process's watch
// looks for.
StreamCommunicatorPtr make_communicator(const std::string& kind, const BootstrapPtr& bootstrap,
                                        const DeviceOptions& options);

}  // namespace tutti
