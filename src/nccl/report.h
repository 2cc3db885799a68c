// Which calls ran where, and why the rest did not: counted always, printed when the process ends if
// TUTTI_NCCL_REPORT=1.
//
// Thread rule: any thread.
#pragma once

#include <cstddef>
#include <string>

#include "nccl/decision.h"

namespace tutti::nccl {

// `reason` kNone: Tutti ran it, by a plan of the program's if `planned`.
void count_call(Function function, Reason reason, std::size_t bytes, bool planned) noexcept;

// `transport` is that of Tutti's group; empty if there is none, for `reason`.
void count_communicator(const std::string& transport, const std::string& reason);

// Lines of text: "all_reduce: 12 by Tutti (48.0 KB, 3 by plans), 1 by NCCL: larger than the limit 1".
std::string report();

}  // namespace tutti::nccl
