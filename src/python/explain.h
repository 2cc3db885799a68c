// Which algorithm a call would take on this machine, without torch and without launching anything.
//
// Thread rule: any thread. A group of thread ranks is made for the answer and is gone when explain() returns: so the
// answer is the library's own, for this machine and this environment, not a second opinion.
#pragma once

#include <cstddef>
#include <string>

#include "tutti/types.h"

namespace tutti {

struct ExplainRequest {
  Collective collective = Collective::kAllReduce;
  std::size_t bytes = 0;  // of one rank's block
  int ranks = 2;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  bool mapped = false;  // the tensors are ones that all ranks of the host map
};

// Communicator::explain for rank 0 of such a group. Throws Error(kInvalidArgument) or Error(kUnsupported).
std::string explain(const ExplainRequest& request);

}  // namespace tutti
