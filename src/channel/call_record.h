// What a rank says of its call, so that peers can compare before anything is written.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "tutti/types.h"

namespace tutti {

// The code of `Collective`, followed by the point-to-point calls.
inline constexpr std::uint8_t kCallSend = kCollectiveCount;
inline constexpr std::uint8_t kCallRecv = kCollectiveCount + 1;
// Those of inference engines (tutti/serving.h); `tag` is the hidden size, or the elements of a block.
inline constexpr std::uint8_t kCallAddRmsNorm = kCollectiveCount + 2;
inline constexpr std::uint8_t kCallQuantized = kCollectiveCount + 3;

// Trivially copyable, 64 bytes: it lies in shared memory and in message headers. Unused fields are zero.
struct CallRecord {
  std::uint64_t sequence = 0;      // of collectives; 0 for point-to-point
  std::uint64_t count = 0;         // elements of this rank's block
  std::uint64_t mapped_input = 0;  // arena offset of input and output, kNotMapped when not mapped
  std::uint64_t mapped_output = 0;
  union {
    std::array<char, 16> name{};  // even collectives: of the algorithm that the call asks for, see name_algorithm()
    std::uint64_t largest;        // uneven collectives: bytes of this rank's largest block
    std::uint64_t tag;            // point-to-point, and the calls of inference engines
  };
  std::int32_t root = -1;
  std::uint32_t hash = 0;
  std::uint8_t call = 0;
  std::uint8_t dtype = 0;
  std::uint8_t op = 0;
  std::uint8_t uneven = 0;
  // Identity of the algorithm that the call asks for, else of what the group may choose from beside the library's own
  // (on a GPU: of the choice that the rank has made); 0 without.
  std::uint32_t algorithm = 0;
};
static_assert(sizeof(CallRecord) == 64);

// Hash of what all ranks must agree on: call, dtype, op where it reduces, root, uneven, count unless uneven, algorithm.
// Never 0. The sequence number is compared apart.
std::uint32_t fingerprint(const CallRecord& record) noexcept;

// A hash with one more number in it on which all ranks must agree; never 0.
std::uint32_t with_number(std::uint32_t hash, std::uint64_t number) noexcept;

// Puts the name of the algorithm that a collective of even blocks asks for into its record: 16 bytes of it.
void name_algorithm(CallRecord& record, std::string_view name) noexcept;

// "all_reduce #7 f32[1024] sum", "broadcast #7 f32[1024] root 0", "send f32[16] tag 3", "all_gather #8 f32[4] by ring
// (4f06c2a1)". `algorithm`: the whole name of the algorithm, where it is known.
std::string describe(const CallRecord& record, std::string_view algorithm = {});

}  // namespace tutti
