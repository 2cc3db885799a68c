// What a rank says of its call, so that peers can compare before anything is written.
#pragma once

#include <cstdint>
#include <string>

#include "tutti/types.h"

namespace tutti {

// The code of `Collective`, followed by the point-to-point calls.
inline constexpr std::uint8_t kCallSend = kCollectiveCount;
inline constexpr std::uint8_t kCallRecv = kCollectiveCount + 1;

// Trivially copyable, 64 bytes: it lies in shared memory and in message headers. Unused fields are zero.
struct CallRecord {
  std::uint64_t sequence = 0;      // of collectives; 0 for point-to-point
  std::uint64_t count = 0;         // elements of this rank's block
  std::uint64_t mapped_input = 0;  // arena offset of input and output, kNotMapped when not mapped
  std::uint64_t mapped_output = 0;
  std::uint64_t largest = 0;  // uneven calls: bytes of this rank's largest block
  std::uint64_t tag = 0;      // point-to-point
  std::int32_t root = -1;
  std::uint32_t hash = 0;
  std::uint8_t call = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t uneven = 0;
  std::uint32_t plans = 0;  // identity of the plans that the group has loaded; 0 without
};
static_assert(sizeof(CallRecord) == 64);

// Hash of what all ranks must agree on: call, dtype, op where it reduces, root, uneven, count unless uneven, plans.
// Never 0. The sequence number is compared apart.
std::uint32_t fingerprint(const CallRecord& record) noexcept;

// "all_reduce #7 f32[1024] sum", "broadcast #7 f32[1024] root 0", "send f32[16] tag 3".
std::string describe(const CallRecord& record);

}  // namespace tutti
