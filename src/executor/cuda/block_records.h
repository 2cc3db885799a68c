// The records of one thread block while they are made (lowering.cc), before anything counts on where they lie.
//
// Thread rule: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/cuda/device_program.h"
#include "executor/program/program.h"

namespace tutti::executor {

struct BlockRecord {
  DeviceOp op;  // without its joins, and its `first`
  std::vector<DeviceOperand> sources;
  std::vector<DeviceOperand> targets;
  Position position;
  bool nop = false;  // the plan joins the lanes before it
};
using BlockRecords = std::vector<BlockRecord>;

// Bytes that a record reads or writes, where they lie.
struct RecordRange {
  std::uint16_t place = kFixed;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  bool writes = false;

  bool overlaps(const RecordRange& other) const {
    return place == other.place && begin < other.end && other.begin < end;
  }
};

inline bool is_word(DeviceCode code) { return code == DeviceCode::kSignal || code == DeviceCode::kWait; }
// Whether a source, or target, of a record of data holds packets.
bool packed_source(const DeviceOp& op, std::uint32_t index);
bool packed_target(const DeviceOp& op, std::uint32_t index);
// Of data. Its sources, then its targets.
std::vector<RecordRange> ranges_of(const BlockRecord& record);

// Makes the block take one of `word`, before it touches another rank's tensor or, if it touches none, at any time: with
// words that it awaits before that anyway, or by a record of its own.
void await_before_peers(BlockRecords& records, const DeviceOperand& word);

// Says where lanes join: DeviceOp::joins of all. A record joins if it touches what others have touched since the last
// join.
void decide_joins(BlockRecords& records);

}  // namespace tutti::executor
