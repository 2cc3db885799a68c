// Communicators that do not block: their groups form in the background, and until then ncclCommGetAsyncError says that
// they are in progress. So do those that are finalized while Tutti's kernels run.
//
// A group begins to form when this rank is told for the first time that NCCL is ready, since only then may NCCL be
// asked anything else. A rank that calls a collective without having asked has decided for all: the communicator is
// NCCL's.
//
// Meanwhile abort() reaches the kernels of both.
//
// Ownership: a thread in the background holds what it works on, and ends by itself within the bounds of an agreement.
// Thread rule: any thread.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>

#include "nccl/communicators.h"

namespace tutti::nccl {

struct Pending {
  std::optional<MeetingPlace> place;
  int rank = -1;
  int size = 0;
  const char* against = nullptr;      // with a reason this rank refuses
  std::mutex mutex;                   // guards `begun`; a leaf
  bool begun = false;                 // a thread works on it
  std::atomic<bool> given_up{false};  // nobody wants it any more
};

// What NCCL makes of the program's configuration and NCCL_COMM_BLOCKING; `otherwise` is what counts without them.
bool blocks(const ncclConfig_t* config, bool otherwise) noexcept;

// After NCCL has begun to make `comm`. With a reason `against` it, this rank refuses once it is ready.
void adopt_later(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, const char* against);

// NCCL is ready: whether Tutti is, too. Begins to form the group if nobody has yet.
bool ready(ncclComm_t comm, const std::shared_ptr<Served>& served);

// Before a collective: whether it may go on to NCCL. It may not while the ranks find out where it runs.
bool may_call(ncclComm_t comm, const std::shared_ptr<Served>& served);

// Ends the group of a communicator: here if it blocks, else in the background, and until then it is in progress.
// False: meanwhile it has been aborted, and is nobody's any more.
bool finalize(ncclComm_t comm);
// Whether it is ending in the background.
bool ends(ncclComm_t comm);

}  // namespace tutti::nccl
