// The generic algorithms over messages: for ranks of several hosts, and for everything else that has no better.
#pragma once

#include "algorithm/shm/shm_algorithms.h"

namespace tutti {

AlgorithmList net_algorithms();

}  // namespace tutti
