// The tuning table of this machine, as a group of ranks uses it: found, believed or not, and turned into rules.
//
// A table is read once a process as long as its file does not change. Whether it is used must be the same on all ranks:
// each gives its `identity` when the group forms, and they use it only if all have said the same.
//
// Thread rule: values; load_tuning() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "algorithm/collection.h"
#include "algorithm/plan/plan_files.h"
#include "algorithm/tuning/table.h"
#include "tutti/config.h"

namespace tutti {

struct Tuning {
  std::shared_ptr<const TuningTable> table;  // null where there is none for this machine
  std::string path;                          // of the table; empty if there is none
  std::string complaint;                     // why a table that is there does not count; to be told once
  std::vector<PlanFile> plans;               // that calls among so many ranks choose
  std::uint64_t identity = 0;                // of what the table says; 0 without one
};

enum class TunedDevice { kCpu, kGpu };

// What TUTTI_TUNING_PATH or the user's folder has for groups of `ranks` ranks. Throws Error(kInvalidArgument) naming
// the file and the JSON path of what is wrong in it, or the plan that is not what was measured.
Tuning load_tuning(const Config& config, int ranks, TunedDevice device = TunedDevice::kCpu);

// The rules of the table for a group.
std::vector<TuningRule> rules_of(const TuningTable& table, int ranks, bool crowded);
// The same for calls on GPUs: of these (TuningCell::gpus) only.
std::vector<TuningRule> rules_on_gpus(const TuningTable& table, int ranks, const std::string& gpus);

// The file in `folder` that is this machine's table.
std::string tuning_file(const std::string& folder);

}  // namespace tutti
