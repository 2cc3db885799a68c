// A plan's text as CUDA C++, for those who know nothing of GPUs.
//
// Thread rule: pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "algorithm/compiled/plan_compiler.h"
#include "tutti/types.h"

namespace tutti {

// One rank's part of a call.
struct PlanSourceRequest {
  std::int32_t rank = 0;
  std::size_t bytes = 0;  // of a rank block; of more than a segment takes, the first segment
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  int most_cluster = 1;   // executor::cluster_of(): of the architecture that it is for
  bool in_place = false;  // input and output are one, or one is a block of the other
};

// Of a plan that has been proven (its repairs are made). Throws Unsupported if GPUs cannot run it, or not compiled.
KernelText emit_plan(const std::string& text, const PlanSourceRequest& request, const std::string& cache_folder);

}  // namespace tutti
