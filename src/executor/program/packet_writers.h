// Whose packets a rank waits for, as the plan has it: for messages, so it may be slow.
//
// Thread rule: a pure function.
#pragma once

#include <cstdint>
#include <vector>

#include "plan/plan.h"

namespace tutti::executor {

// The ranks that write packets into any of the chunks [first, first + count) of the scratch of `rank`, ascending.
std::vector<std::int32_t> packet_writers(const plan::Plan& plan, std::int32_t rank, std::int32_t first,
                                         std::int32_t count);

}  // namespace tutti::executor
