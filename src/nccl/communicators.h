// What Tutti has beside each communicator of NCCL's: a group of its own, or the reason why there is none.
//
// A communicator of the program's is the real NCCL's handle; this is a side table. A group is formed right after NCCL
// has formed its own, and only if all ranks say that they can (circle.h), so whether Tutti serves a communicator is
// equal on all of them.
//
// Ownership: a group lives until its communicator is finalized, destroyed or aborted. Thread rule: any thread.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "nccl/circle.h"
#include "nccl/decision.h"
#include "nccl/scalars.h"
#include "tutti/cuda_communicator.h"

namespace tutti::nccl {

struct Served {
  std::unique_ptr<Circle> circle;          // null: splits are NCCL's, too
  std::shared_ptr<CudaCommunicator> cuda;  // null: every call goes to NCCL
  Common common;
  ScaledSums scaled;
  std::string reason;  // why there is no group
};

// Null for a communicator that is not known.
std::shared_ptr<Served> find(ncclComm_t comm);

// After NCCL has made `comm`. `in_company` tells that others are made which it would wait for, or they for it
// (adoption.h): such a rank refuses.
void adopt(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, bool in_company);
void adopt_split(ncclComm_t parent, int color, int key, ncclComm_t comm, bool in_company);
void adopt_without(ncclComm_t comm, const std::string& reason);

// Gives up the group: its kernels are awaited, unless they are aborted first.
void drop(ncclComm_t comm);
void abort(ncclComm_t comm, const char* call);
// The same, but the communicator stays known: for calls that leave it to the program.
void abort_group(ncclComm_t comm, const char* call);

}  // namespace tutti::nccl
