// What a kernel has recorded, as an Error that names ranks and calls.
#pragma once

#include <optional>
#include <string>

#include "communicator/cuda/call_board.h"
#include "tutti/device/wait.cuh"
#include "tutti/error.h"

namespace tutti::cuda {

// Empty while all is well. `board` tells which call of a rank a fingerprint stands for.
std::optional<Error> failure_of(const device::HostControl& control, int rank, const std::string& name,
                                const std::string& abort_reason, const CallBoard& board);

}  // namespace tutti::cuda
