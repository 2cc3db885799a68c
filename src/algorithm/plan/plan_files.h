// The plans that a user names: TUTTI_PLAN_PATH, a file or a folder. No plan gets past here unproven.
//
// Thread rule: a value; load_plans() may be called from any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti {

struct PlanFile {
  std::string path;
  std::shared_ptr<const plan::Plan> plan;  // with its repairs
};

struct PlanFiles {
  std::vector<PlanFile> files;  // of a folder: its *.json in the order of their names
  // Of what the files hold and in which order; 0 without files. Ranks of one group must agree on it, because the choice
  // of an algorithm follows from it.
  std::uint32_t identity = 0;
};

// Those for `ranks` ranks; nothing for an empty path. Throws Error(kInvalidArgument) that begins with the file's path
// and goes on with the JSON path of what is wrong in a file, or with what the verifier has found. What has been read
// and proven before is not read and proven again (plan_cache.h, which says what `cache_folder` is).
PlanFiles load_plans(const std::string& path, int ranks, const std::string& cache_folder);

}  // namespace tutti
