// Devices of this process by their kind ("cuda"), for what libtutti.so itself does on them. All but the registry throw
// Error(kUnsupported) where there is no plug-in of the kind.
#pragma once

#include "device/device.h"
#include "device/registry.h"

namespace tutti {

// A plug-in stays loaded as long as the process, and so does the registry that has loaded it. The search path of the
// first caller's `config` counts, or the environment's.
DeviceRegistry& device_registry(const Config* config = nullptr);
Device& device_of_kind(const std::string& kind);

// A communicator of the ranks of `bootstrap` on memory of devices of this kind, whose failures the process's watch
// looks for.
StreamCommunicatorPtr make_communicator(const std::string& kind, const BootstrapPtr& bootstrap,
                                        const DeviceOptions& options);

}  // namespace tutti
