#include "executor/cpu/packet_operations.h"

#include <algorithm>
#include <cstring>

namespace tutti::executor {
namespace {

std::uint64_t packet(std::uint32_t payload, std::uint32_t flag) noexcept { return std::uint64_t{flag} << 32 | payload; }

}  // namespace

void write_packets(PacketWord* packets, const std::byte* payload, std::int64_t bytes, std::uint32_t flag) noexcept {
  const std::int64_t whole = bytes / kPayload;
  for (std::int64_t i = 0; i < whole; ++i) {
    std::uint32_t value = 0;
    std::memcpy(&value, payload + i * kPayload, kPayload);
    // release: what this rank did before is done; pairs with the acquire in holds() and read_packets().
    packets[i].store(packet(value, flag), std::memory_order_release);
  }
  const std::int64_t rest = bytes % kPayload;
  if (rest == 0) return;
  std::uint32_t value = 0;
  std::memcpy(&value, payload + whole * kPayload, static_cast<std::size_t>(rest));
  packets[whole].store(packet(value, flag), std::memory_order_release);  // release: as above
}

void fill_packets(PacketWord* packets, std::int64_t count, std::uint32_t flag) noexcept {
  for (std::int64_t i = 0; i < count; ++i) packets[i].store(packet(0, flag), std::memory_order_release);  // as above
}

std::int64_t read_packets(std::byte* payload, const PacketWord* packets, std::int64_t bytes,
                          std::uint32_t flag) noexcept {
  const std::int64_t whole = bytes / kPayload;
  for (std::int64_t i = 0; i < whole; ++i) {
    // acquire: pairs with the release in write_packets().
    const std::uint64_t word = packets[i].load(std::memory_order_acquire);
    if (static_cast<std::uint32_t>(word >> 32) != flag) return i * kPayload;
    const auto value = static_cast<std::uint32_t>(word);
    std::memcpy(payload + i * kPayload, &value, kPayload);
  }
  const std::int64_t rest = bytes % kPayload;
  if (rest == 0) return bytes;
  const std::uint64_t word = packets[whole].load(std::memory_order_acquire);  // acquire: as above
  if (static_cast<std::uint32_t>(word >> 32) != flag) return whole * kPayload;
  const auto value = static_cast<std::uint32_t>(word);
  std::memcpy(payload + whole * kPayload, &value, static_cast<std::size_t>(rest));
  return bytes;
}

std::int64_t count_packets(const PacketWord* packets, std::int64_t bytes, std::uint32_t flag) noexcept {
  const std::int64_t all = packets_of(bytes);
  std::int64_t there = 0;
  while (there < all && holds(packets[there], flag)) ++there;
  return std::min(there * kPayload, bytes);
}

void store_packets(PacketWord* to, const std::byte* from, std::int64_t packets) noexcept {
  for (std::int64_t i = 0; i < packets; ++i) {
    std::uint64_t word = 0;
    std::memcpy(&word, from + i * static_cast<std::int64_t>(sizeof word), sizeof word);
    to[i].store(word, std::memory_order_release);  // release: as in write_packets()
  }
}

void copy_packets(PacketWord* to, const PacketWord* from, std::int64_t packets) noexcept {
  for (std::int64_t i = 0; i < packets; ++i) {
    // acquire and release: as whoever reads and writes these packets.
    to[i].store(from[i].load(std::memory_order_acquire), std::memory_order_release);
  }
}

}  // namespace tutti::executor
