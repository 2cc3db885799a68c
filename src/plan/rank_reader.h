// One element of a plan's "gpus" from JSON.
#pragma once

#include "plan/json_document.h"
#include "plan/plan.h"

namespace tutti::plan {

// Fails unless the element's "id" is `id`, its place in the list. `operations` are those of its thread blocks, which
// are read before.
Rank read_rank(const Cursor& gpu, std::int32_t id, std::vector<std::vector<Operation>> operations);

// One operation. `rank` is the owner of the thread block that it stands in.
Operation read_operation(const Cursor& op, std::int32_t rank, bool in_pipeline);

std::vector<std::int32_t> read_ids(const Cursor& list, std::size_t most, std::int64_t largest);

}  // namespace tutti::plan
