// The built-in algorithms for ranks of one host, over its shared memory.
//
// Four families, by how a payload crosses:
//   slots   one round: every sender copies its payload beside its announcement, every reader takes it from there
//   staged  any size: payloads cross in chunks through staging areas that stay in cache, in a software pipeline
//   mapped  tensors that all ranks map are read and written in place, with no copy
//   pulled  the kernel reads the peers' tensors: one copy, for what each rank needs of its own
// All of them give every rank the same bits, because reductions run in rank order on one rank or on all alike.
#pragma once

#include <memory>
#include <vector>

#include "algorithm/algorithm.h"

namespace tutti {

using AlgorithmList = std::vector<std::shared_ptr<const Algorithm>>;

AlgorithmList slot_algorithms();
AlgorithmList staged_algorithms();
AlgorithmList mapped_algorithms();
AlgorithmList pulled_algorithms();

}  // namespace tutti
