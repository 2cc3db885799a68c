// Collectives under NCCL's name, and the groups of calls that they may stand in.
//
// In a group of calls, what Tutti runs waits for the outermost end, where it is issued in the order of the calls; the
// rest is in the real library's group, which is ended after it. So every rank that makes the same groups issues in the
// same order.
//
// Thread rule: groups belong to a thread, as NCCL has it.
#pragma once

#include <vector>

#include "nccl/adoption.h"
#include "nccl/decision.h"

namespace tutti::nccl {

// Decides, counts, and runs or queues a collective. False: it is for the real library; `result` is untouched.
bool take_call(const Arguments& call, ncclResult_t& result) noexcept;

// Communicators that the real library has made, or makes at the end of this thread's group of calls.
void made(std::vector<Making> making) noexcept;

ncclResult_t group_start() noexcept;
ncclResult_t group_end() noexcept;
ncclResult_t group_simulate_end(ncclSimInfo_t* info) noexcept;

}  // namespace tutti::nccl
