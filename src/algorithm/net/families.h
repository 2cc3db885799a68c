// The families of algorithms over messages, a file each.
#pragma once

#include "algorithm/shm/shm_algorithms.h"

namespace tutti {

AlgorithmList ring_algorithms();           // ring.cc
AlgorithmList direct_algorithms();         // direct.cc
AlgorithmList tree_algorithms();           // tree.cc
AlgorithmList dissemination_algorithms();  // dissemination.cc
AlgorithmList linear_algorithms();         // linear.cc

}  // namespace tutti
