// A call as NCCL's functions run it: what has to be copied before, one group of NCCL's calls, what has to be copied
// after. All ranks of a call come to the same calls of NCCL's, whatever layout each has its blocks in: that is decided
// by what they agree on (the collective, `uneven`, the sizes that all know).
//
// Functions of their arguments; they call nothing of NCCL or CUDA. Thread rule: any thread.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "device/nccl/abi.h"
#include "tutti/call.h"

namespace tutti {

struct NcclCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

struct NcclStep {
  enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };
  Kind kind = Kind::kAllReduce;
  const std::byte* send = nullptr;
  std::byte* recv = nullptr;
  std::size_t count = 0;  // as NCCL counts: of the type below
  int peer = -1;          // of a message; of a rooted call the root
};

struct NcclCall {
  ncclDataType_t type = ncclUint8;
  ncclRedOp_t op = ncclSum;
  bool scaled = false;  // kPremulSum: `op` is to be made of the call's factor
  std::vector<NcclCopy> before, after;
  std::vector<NcclStep> steps;  // one group
};

// Throws Error(kUnsupported) for what NCCL cannot reduce; `fp8`: whether it reduces that on this rank's device.
void check_nccl_reduction(const Call& call, bool fp8);

// Memory that the call needs beside the caller's, in bytes: for even blocks that do not lie one behind the other.
std::size_t nccl_scratch_bytes(const Call& call, int size);

// `call`, which check_call() and check_nccl_reduction() have passed, of `rank` among `size`. `scratch` has
// nccl_scratch_bytes(); of a barrier it is memory of one byte that nobody else uses.
NcclCall make_nccl_call(const Call& call, int rank, int size, std::byte* scratch);

// The factor of a kPremulSum as one element of the call's type (of a complex one's parts).
std::array<std::byte, 8> nccl_factor(const Call& call);

}  // namespace tutti
