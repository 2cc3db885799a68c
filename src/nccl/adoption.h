// Communicators that the real library has made get what Tutti has beside them (communicators.h), also when one group of
// calls has made several of them: then each has a thread, since each waits for its ranks, which may be this thread's.
//
// On one GPU communicators are formed one at a time only: what one allocates there would wait for what another one's
// first kernels wait for. So a group of calls that makes several on a GPU leaves these to NCCL; several ranks of one
// communicator lie on GPUs of their own. Of those that do not block all are left if the group makes several: nobody
// knows their GPUs yet. Those that are made one by one are formed when the program asks for them.
//
// Thread rule: any thread; what a group of calls has made is adopted before its end returns.
#pragma once

#include <optional>
#include <vector>

#include "bootstrap/meeting_place.h"
#include "device/nccl/abi.h"

namespace tutti::nccl {

struct Making {
  ncclComm_t* comm = nullptr;
  int rank = -1;
  int size = 0;
  std::optional<MeetingPlace> place;  // where its ranks meet; none in ids that have no room for it
  ncclComm_t parent = nullptr;        // of a split: then colour and key count
  int color = -1;
  int key = 0;
  bool blocks = true;
  const char* without = nullptr;  // why it is left to NCCL in any case
};

void adopt_all(const std::vector<Making>& making) noexcept;

}  // namespace tutti::nccl
