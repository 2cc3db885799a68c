// Whether a plan hangs together: all ids in range, channels paired, counters with two ends, barriers complete.
//
// It says nothing about what the plan computes; that is the verifier's part, and so is everything that depends on
// order.
#pragma once

#include <optional>

#include "plan/plan.h"

namespace tutti::plan {

// Throws InvalidArgument that begins with the JSON path of the first fault.
void check_structure(const Plan& plan);

// … the part of it that rank 0 shows alone, where it stands for `ranks` of its kind.
void check_first_rank(const Plan& plan, std::size_t ranks);

// The reduction that all reducing operations of the plan name, or empty.
std::optional<ReduceKind> common_reduction(const Plan& plan);

// The JSON path of an operation: "/gpus/1/threadblocks/0/ops/3" and, inside a pipeline, "…/ops/2".
std::string path_of(std::size_t rank, std::size_t block, std::size_t op, std::optional<std::size_t> inner = {});

}  // namespace tutti::plan
