// How large a plan may be. Past these a text is no plan but an attack or a mistake; all are far above what a program
// for 4,096 ranks needs.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::plan {

inline constexpr std::size_t kMaxTextBytes = std::size_t{4} << 30;
inline constexpr std::size_t kMaxRanks = 65536;
inline constexpr std::int32_t kMaxChunks = 1 << 24;        // of one buffer
inline constexpr std::size_t kMaxBlocks = 4096;            // of one rank
inline constexpr std::size_t kMaxOperations = 1 << 20;     // of one thread block, or of a body
inline constexpr std::size_t kMaxAllOperations = 1 << 22;  // of all ranks; a fifth of a kilobyte each
inline constexpr std::size_t kMaxChannels = 1 << 18;       // of one rank and kind
inline constexpr std::size_t kMaxSemaphores = 1 << 16;     // of one rank
inline constexpr std::size_t kMaxOperands = 65536;         // of one side of an operation
inline constexpr std::int32_t kMaxCredit = 1 << 20;        // a semaphore's initial value
inline constexpr std::int64_t kMaxUnitBytes = std::int64_t{1} << 40;
inline constexpr std::size_t kMaxNameBytes = 4096;
inline constexpr std::size_t kMaxDims = 17;  // of a template; 2^16 is kMaxRanks
// What a template may become when it is written out, in operands and ids of all ranks; an operation counts as 8.
inline constexpr std::int64_t kMaxWritten = std::int64_t{1} << 25;

}  // namespace tutti::plan
