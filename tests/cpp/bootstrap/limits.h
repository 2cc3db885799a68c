// How long the bootstrap tests let anything wait that must come.
#pragma once

#include <chrono>

namespace tutti {

inline constexpr std::chrono::milliseconds kLong{20'000};

}  // namespace tutti
