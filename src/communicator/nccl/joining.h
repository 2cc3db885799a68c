// How ranks come to a communicator of NCCL's.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"
#include "communicator/nccl/library.h"
#include "communicator/nccl/stream_work.h"

namespace tutti {

struct NcclJoin {
  std::string group;  // its name
  std::string why;    // its calls are NCCL's
  std::chrono::milliseconds timeout{};
  // A first call, if there is one: it may wait for the peers as NCCL's beginning does. Outlives the caller's frame.
  std::function<ncclResult_t(ncclComm_t)> first;
};

// Collective over the ranks of `bootstrap`, each on a device of its own. Throws on all ranks Error(kUnsupported) if one
// has no NCCL, and Error(kMismatch) if they have different ones; what NCCL refuses; Error(kTimeout), and what Bootstrap
// throws. Never null.
ncclComm_t join_nccl(Bootstrap& bootstrap, const NcclJoin& join, const NcclLibrary& nccl,
                     const std::shared_ptr<StreamWork>& work);

}  // namespace tutti
