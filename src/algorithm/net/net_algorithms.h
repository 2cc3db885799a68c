// The generic algorithms over messages: for ranks of several hosts, and for everything else that has no better.
#pragma once

#include "algorithm/host/host_algorithms.h"

namespace tutti {

AlgorithmList net_algorithms();

}  // namespace tutti
