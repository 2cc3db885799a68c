// What the records and the counts of a call need to know of it, on every device.
#pragma once

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

// What a collective is, to be compared and named; its number, what runs it and the hash are its caller's.
inline CallRecord record_of(const Call& call) noexcept {
  CallRecord record;
  record.call = static_cast<std::uint8_t>(call.collective);
  record.dtype = static_cast<std::uint8_t>(call.dtype);
  record.op = reduces(call.collective) ? static_cast<std::uint8_t>(call.op) : 0;
  record.root = has_root(call.collective) ? call.root : -1;
  record.uneven = call.uneven ? 1 : 0;
  record.count = call.count;
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
