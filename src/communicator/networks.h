// The networks between hosts that groups use.
#pragma once

#include <span>

#include "transport/network.h"

namespace tutti {

// The better one first; the last one is there on every machine.
std::span<const Network> built_in_networks() noexcept;

}  // namespace tutti
