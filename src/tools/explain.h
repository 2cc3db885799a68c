// Which algorithm a call would take on this machine, without torch and without launching anything.
//
// Thread rule: any thread. A group of thread ranks is made for the answer and is gone when explain() returns: so the
// answer is the library's own, for this machine and this environment, not a second opinion.
#pragma once

#include <string>

#include "tools/sample_call.h"

namespace tutti {

// Communicator::explain for rank 0 of such a group; `on_gpu`: CudaCommunicator::candidates, of one on the GPUs here.
// Throws Error(kInvalidArgument) or Error(kUnsupported).
std::string explain(const SampleShape& request, bool on_gpu = false);

}  // namespace tutti
