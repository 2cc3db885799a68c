// Collectives under NCCL's name, and the groups of calls that they may stand in.
//
// In a group of calls, what Tutti runs waits for the outermost end, where it is issued in the order of the calls; the
// rest is in the real library's group, which is ended after it. So every rank that makes the same groups issues in the
// same order.
//
// Thread rule: groups belong to a thread, as NCCL has it.
#pragma once

#include "nccl/decision.h"
#include "nccl/unique_id.h"

namespace tutti::nccl {

// Decides, counts, and runs or queues a collective. False: it is for the real library; `result` is untouched.
bool take_call(const Arguments& call, ncclResult_t& result) noexcept;

// A communicator that the real library makes now, or at the end of this thread's group of calls.
struct Making {
  ncclComm_t* comm = nullptr;
  int rank = -1;
  int size = 0;
  ncclUniqueId id{};
  ncclComm_t parent = nullptr;  // of a split: then colour and key count
  int color = -1;
  int key = 0;
  const char* without = nullptr;  // why it is left to NCCL in any case
};
void made(const Making& making) noexcept;

ncclResult_t group_start() noexcept;
ncclResult_t group_end() noexcept;
ncclResult_t group_simulate_end(ncclSimInfo_t* info) noexcept;

}  // namespace tutti::nccl
