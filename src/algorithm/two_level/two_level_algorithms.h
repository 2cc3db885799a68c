// The built-in algorithms in two levels, for groups on several hosts of several ranks.
#pragma once

#include "algorithm/shm/shm_algorithms.h"

namespace tutti {

AlgorithmList leader_algorithms();   // leaders.cc
AlgorithmList carrier_algorithms();  // carriers.cc

}  // namespace tutti
