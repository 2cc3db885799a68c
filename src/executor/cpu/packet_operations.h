// Packets: data and flag in one 64-bit word, so that whoever sees the flag has the data.
//
// A packet holds 4 bytes of payload in its lower half and the flag of its invocation in its upper half. Zero is never a
// flag, so fresh memory holds no packet. The last packet of a range is padded with zeros; neither side touches payload
// beyond its range.
//
// Memory order: stores release and loads acquire, a word each. The payload alone would need neither; but a packet also
// says that its writer has executed what came before, so that its reader may overwrite what the writer
// has read. On x86 both are plain moves. Rejected: relaxed words between two fences (the same code here, and thread
// sanitizers do not understand fences).
//
// Thread rule: pure functions of their arguments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "executor/program/packets.h"

namespace tutti::executor {

using PacketWord = std::atomic<std::uint64_t>;
static_assert(sizeof(PacketWord) == kPacketBytes && PacketWord::is_always_lock_free);

inline PacketWord* packets_at(std::byte* memory) noexcept { return reinterpret_cast<PacketWord*>(memory); }

inline bool holds(const PacketWord& word, std::uint32_t flag) noexcept {
  // acquire: pairs with the release in write_packets().
  return static_cast<std::uint32_t>(word.load(std::memory_order_acquire) >> 32) == flag;
}

void write_packets(PacketWord* packets, const std::byte* payload, std::int64_t bytes, std::uint32_t flag) noexcept;

// Packets of zeros.
void fill_packets(PacketWord* packets, std::int64_t count, std::uint32_t flag) noexcept;

// Reads up to `bytes` of payload and stops at the first packet that is not there. Returns the bytes read: a multiple
// of kPayload, or `bytes`.
std::int64_t read_packets(std::byte* payload, const PacketWord* packets, std::int64_t bytes,
                          std::uint32_t flag) noexcept;

// How much of `bytes` is there without a gap.
std::int64_t count_packets(const PacketWord* packets, std::int64_t bytes, std::uint32_t flag) noexcept;

// Stores packets that came as plain bytes, each in one store.
void store_packets(PacketWord* to, const std::byte* from, std::int64_t packets) noexcept;

// Copies whole packets, each in one store.
void copy_packets(PacketWord* to, const PacketWord* from, std::int64_t packets) noexcept;

}  // namespace tutti::executor
