#include "executor/cuda/block_records.h"

#include <algorithm>
#include <utility>

#include "executor/program/packets.h"

namespace tutti::executor {
namespace {

// Ranges that are compared with those of later records; a join forgets them.
constexpr std::size_t kMostRanges = 256;

// What a block has done since its lanes last joined.
class SinceJoin {
 public:
  void add(BlockRecord& record, bool follows_its_like) {
    waited_ = waited_ || record.nop;
    record.op.joins = 0;
    is_word(record.op.code) ? add_words(record.op, follows_its_like) : add_data(record);
  }

 private:
  void join(DeviceOp& op) {
    op.joins = 1;
    ranges_.clear();
    waited_ = touched_ = fenced_ = false;
  }

  // What was done is done on all lanes before others hear of it. A count is one lane's at a time.
  void add_words(DeviceOp& op, bool again) {
    if (waited_ || fenced_ || (op.code == DeviceCode::kSignal && touched_) || again) join(op);
    waited_ = waited_ || op.code == DeviceCode::kWait;
  }

  void add_data(BlockRecord& record) {
    DeviceOp& op = record.op;
    const std::vector<RecordRange> mine = ranges_of(record);
    const auto conflicts = [&](const RecordRange& range) {
      return std::any_of(mine.begin(), mine.end(),
                         [&](const RecordRange& own) { return own.overlaps(range) && (own.writes || range.writes); });
    };
    // Packets of a port speak for the transfers before them, which all lanes made.
    const bool speaks = op.code == DeviceCode::kCopyPackets && touched_;
    if (waited_ || op.fences != 0 || fenced_ || speaks || ranges_.size() > kMostRanges ||
        std::any_of(ranges_.begin(), ranges_.end(), conflicts)) {
      join(op);
    }
    ranges_.insert(ranges_.end(), mine.begin(), mine.end());
    touched_ = true;
    fenced_ = op.fences != 0;
    waited_ = op.code == DeviceCode::kAwait;
  }

  std::vector<RecordRange> ranges_;
  bool touched_ = false;  // data
  bool waited_ = false;
  bool fenced_ = false;
};

}  // namespace

bool packed_source(const DeviceOp& op, std::uint32_t index) {
  switch (op.code) {
    case DeviceCode::kForward:
    case DeviceCode::kCopyPackets:
    case DeviceCode::kUnpack:
    case DeviceCode::kAwait:
      return true;
    case DeviceCode::kFold:
      return index != op.plain;
    default:
      return false;
  }
}

bool packed_target(const DeviceOp& op, std::uint32_t index) {
  switch (op.code) {
    case DeviceCode::kPack:
    case DeviceCode::kPad:
    case DeviceCode::kForward:
    case DeviceCode::kCopyPackets:
      return true;
    case DeviceCode::kFold:
      return index > 0;
    default:
      return false;
  }
}

std::vector<RecordRange> ranges_of(const BlockRecord& record) {
  std::vector<RecordRange> ranges;
  const std::uint64_t bytes = record.op.bytes;
  const auto packets = static_cast<std::uint64_t>(packets_of(static_cast<std::int64_t>(bytes)) * kPacketBytes);
  const auto add = [&](const DeviceOperand& operand, bool packed, bool writes) {
    ranges.push_back({operand.place, operand.value, operand.value + (packed ? packets : bytes), writes});
  };
  for (std::uint32_t i = 0; i < record.sources.size(); ++i) {
    add(record.sources[i], packed_source(record.op, i), false);
  }
  for (std::uint32_t i = 0; i < record.targets.size(); ++i) {
    add(record.targets[i], packed_target(record.op, i), true);
  }
  return ranges;
}

void await_before_peers(BlockRecords& records, const DeviceOperand& word) {
  const auto reaches = [](const BlockRecord& record) {
    const auto is_peer = [](const DeviceOperand& operand) { return operand.place >= kPeers; };
    return std::any_of(record.sources.begin(), record.sources.end(), is_peer) ||
           std::any_of(record.targets.begin(), record.targets.end(), is_peer);
  };
  const auto first = std::find_if(records.begin(), records.end(), reaches);
  for (auto at = first; at != records.begin();) {
    if ((--at)->op.code == DeviceCode::kWait) return at->sources.push_back(word);
  }
  BlockRecord record;
  record.op.code = DeviceCode::kWait;
  record.sources = {word};
  record.position = first != records.end() ? first->position : Position{-1, -1, -1};
  records.insert(first, std::move(record));
}

void decide_joins(BlockRecords& records) {
  SinceJoin since;
  for (std::size_t i = 0; i < records.size(); ++i) {
    // What could be merged with the words before it has been: here one of them comes again.
    since.add(records[i], i > 0 && records[i - 1].op.code == records[i].op.code);
  }
}

}  // namespace tutti::executor
