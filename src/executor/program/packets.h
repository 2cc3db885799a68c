// What all executors agree on about packets: data and flag in one word of 64 bits, the payload in its lower half.
//
// Thread rule: pure functions of their arguments.
#pragma once

#include <cstdint>

namespace tutti::executor {

inline constexpr std::int64_t kPayload = 4;      // bytes of a packet's payload
inline constexpr std::int64_t kPacketBytes = 8;  // with its flag

constexpr std::int64_t packets_of(std::int64_t bytes) noexcept { return (bytes + kPayload - 1) / kPayload; }

}  // namespace tutti::executor
