// What a kernel has recorded, as an Error that names ranks and calls.
#pragma once

#include <optional>
#include <string>
#include <unordered_map>

#include "channel/call_record.h"
#include "tutti/device/wait.cuh"
#include "tutti/error.h"

namespace tutti::cuda {

// Empty while all is well. `records` tells which call a fingerprint stands for.
std::optional<Error> failure_of(const device::HostControl& control, int rank, const std::string& name,
                                const std::string& abort_reason,
                                const std::unordered_map<std::uint32_t, CallRecord>& records);

}  // namespace tutti::cuda
