// How many of the GPU's blocks run each thread block of a plan together (algorithm/cuda/cluster_team.cuh).
//
// It is each rank's own affair, and differs from call to call: nothing that goes between blocks depends on it.
//
// Thread rule: pure functions.
#pragma once

#include "executor/cuda/device_plan.h"

namespace tutti::executor {

inline constexpr int kMostCluster = 8;  // that every GPU with clusters has

// 1, 2, 4 or 8, at most `most`: where the slowest block is expected to end first. One multiprocessor moves so many
// bytes a second, however many threads it has; several share the bytes, but join slowly.
int cluster_of(const DeviceRecords& records, int most);

}  // namespace tutti::executor
