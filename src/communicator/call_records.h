// What the records and the counts of a call need to know of it, on every device.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/collective_traits.h"
#include "channel/call_record.h"
#include "device/cpu/arena.h"
#include "tutti/call.h"

namespace tutti {

// Bytes of this rank's single block: see the table in tutti/call.h.
inline std::size_t block_bytes(const Call& call, int rank) noexcept {
  switch (call.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kScatter:
    case Collective::kReduceScatter:
      return call.output.size(0);
    case Collective::kAllToAll:
      return call.input.size(call.uneven ? rank : 0);
    default:
      return call.input.size(0);
  }
}

// Four bytes of a record by one store: what has been stored byte by byte cannot be loaded at once before it has left
// the core, and every call is hashed and copied right behind this.
static_assert(std::endian::native == std::endian::little &&
              offsetof(CallRecord, dtype) == offsetof(CallRecord, call) + 1 &&
              offsetof(CallRecord, op) == offsetof(CallRecord, call) + 2 &&
              offsetof(CallRecord, uneven) == offsetof(CallRecord, call) + 3);

// What a collective is, to be compared and named; its number, what runs it and the hash are its caller's.
inline void record_call(const Call& call, CallRecord& record) noexcept {
  const auto kind = static_cast<std::uint32_t>(call.collective) | static_cast<std::uint32_t>(call.dtype) << 8 |
                    (reduces(call.collective) ? static_cast<std::uint32_t>(call.op) << 16 : 0) |
                    (call.uneven ? 1U << 24 : 0);
  std::memcpy(reinterpret_cast<std::byte*>(&record) + offsetof(CallRecord, call), &kind, sizeof kind);
  record.name = {};
  record.root = has_root(call.collective) ? call.root : -1;
  record.count = call.count;
}
inline CallRecord record_of(const Call& call) noexcept {
  CallRecord record;
  record_call(call, record);
  return record;
}

// The same of a message, with its hash.
inline CallRecord record_of_message(bool is_send, std::size_t count, DataType dtype, std::uint64_t tag) noexcept {
  CallRecord record;
  record.call = is_send ? kCallSend : kCallRecv;
  record.dtype = static_cast<std::uint8_t>(dtype);
  record.count = count;
  record.tag = tag;
  record.mapped_input = record.mapped_output = kNotMapped;
  record.hash = fingerprint(record);
  return record;
}

}  // namespace tutti
