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
#include "tutti/cuda/communicator.h"

namespace tutti::nccl {

struct Pending;  // pending.h
struct Given;    // forming.h

struct Served {
  std::unique_ptr<Circle> circle;          // null: splits are NCCL's, too
  std::shared_ptr<CudaCommunicator> cuda;  // null: every call goes to NCCL
  Common common;
  // Operations belong to the communicator: they are as old as it, whatever has replaced this beside it.
  std::shared_ptr<ScaledSums> scaled = std::make_shared<ScaledSums>();
  std::string reason;            // why there is no group
  std::optional<Error> failure;  // of the group that has ended
  bool blocks = true;
  bool freed = false;  // by ncclCommAbort; written under the table's lock while it is there, and read behind that
  std::shared_ptr<Pending> pending;  // of a communicator that does not block, until it is known what it has
};

// Null for a communicator that is not known.
std::shared_ptr<Served> find(ncclComm_t comm);

// Makes `served` what is known of `comm`.
void keep(ncclComm_t comm, std::shared_ptr<Served> served);
// The same if `before` still is; null forgets it. False: it is not.
bool replace(ncclComm_t comm, const std::shared_ptr<Served>& before, std::shared_ptr<Served> after);

// True, and kept, if what all ranks know leaves it to NCCL.
bool adopted_unmet(ncclComm_t comm, const std::optional<MeetingPlace>& place, int size);

// After NCCL has made `comm`. With a reason `against` it, this rank refuses.
void adopt(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, const Given& given,
           const char* against);
void adopt_split(ncclComm_t parent, int color, int key, ncclComm_t comm, const Given& given, const char* against);
void adopt_without(ncclComm_t comm, const std::string& reason);

// What has gone wrong in the group so far, or in the one that has ended.
std::optional<Error> failure_of(ncclComm_t comm);

// Waits for the group's kernels, which abort() ends meanwhile, and gives it up; a failure stays known. Nothing happens
// if `served` is not what is known of `comm` then. False: `comm` has been aborted, and is nobody's any more.
bool end_group(ncclComm_t comm, const std::shared_ptr<Served>& served);
// The same for what is known of `comm`, which is forgotten.
void drop(ncclComm_t comm);
// Ends the group's kernels, but for those that wait behind a kernel of NCCL's, which NCCL has still to end: the caller
// holds what comes back, maybe null, until it has, and then lets it go. `frees`: NCCL is to free `comm` next.
[[nodiscard]] std::shared_ptr<Served> abort(ncclComm_t comm, const char* call, bool frees);
// The same, but the communicator stays known: for calls that leave it to the program.
[[nodiscard]] std::shared_ptr<Served> abort_group(ncclComm_t comm, const char* call);
// Gives up what has been aborted, in the background: its kernels may be waited for.
void let_go(std::shared_ptr<Served> aborted) noexcept;

}  // namespace tutti::nccl
