#include "executor/cuda/simplify.h"

#include <algorithm>
#include <map>
#include <utility>

namespace tutti::executor {
namespace {

bool same(const DeviceOperand& a, const DeviceOperand& b) {
  return a.place == b.place && a.value == b.value && a.extra == b.extra;
}

// Whether the record takes packets as they come, so that single lanes learn what these tell.
bool takes_packets(const DeviceOp& op) {
  return op.code == DeviceCode::kForward || op.code == DeviceCode::kUnpack || op.code == DeviceCode::kFold ||
         op.code == DeviceCode::kAwait;
}

class Simplifier {
 public:
  Simplifier(BlockRecords& records, const Surroundings& around)
      : records_(records), around_(around), dropped_(records.size(), false) {}

  void run() {
    if (!around_.constant.empty()) drop_own_pads();
    erase_dropped();  // what is left of them is what joins lanes
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].op.code == DeviceCode::kFold) take_in_unpack(i);
    }
    if (!around_.constant.empty()) take_constants();
    erase_dropped();
  }

 private:
  // Packets that become a plain source, and who reads them.
  struct Reader {
    std::size_t record;
    std::uint32_t source;
  };

  // unpack(A -> X), fold(B.., X -> X), with nothing in between but waits for the last packets of A's chunks, which then
  // come after the fold.
  void take_in_unpack(std::size_t at) {
    const BlockRecord& fold = records_[at];
    const std::uint8_t plain = fold.op.plain;
    if (plain == kNoPlain || fold.op.fences != 0 || !same(fold.sources[plain], fold.targets[0])) return;
    std::size_t from = at;
    while (from > 0 && records_[--from].op.code == DeviceCode::kAwait) {
      if (records_[from].op.fences != 0 || records_[from].nop || fold.targets.size() > 1) return;
    }
    const BlockRecord& unpack = records_[from];
    if (unpack.op.code != DeviceCode::kUnpack || dropped_[from] || unpack.op.fences != 0) return;
    if (unpack.op.bytes != fold.op.bytes || !same(unpack.targets[0], fold.targets[0])) return;
    // All lanes have read A before any comes to what follows the nop. So something must join them anew before anybody
    // else can hear of it.
    if (fold.nop && (fold.targets.size() > 1 || !ends_joined(at))) return;
    BlockRecord merged = fold;
    merged.sources[plain] = unpack.sources[0];
    merged.op.plain = kNoPlain;
    merged.nop = unpack.nop || (fold.nop && !needs_nothing_before(from));
    std::move_backward(records_.begin() + static_cast<std::ptrdiff_t>(from) + 1,
                       records_.begin() + static_cast<std::ptrdiff_t>(at),
                       records_.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    records_[from + 1] = std::move(merged);
    drop(from);
  }

  // Whether lanes join behind a record, with nothing but waits in between.
  bool ends_joined(std::size_t at) const {
    if (at + 1 == records_.size()) return true;
    const BlockRecord& next = records_[at + 1];
    return next.nop || next.op.fences != 0 || is_word(next.op.code) || next.op.code == DeviceCode::kAwait;
  }
  // Whether what follows needs no join for what the block has done before `at`, since it last joined: all of it is
  // packs of what nobody writes. What comes next is a fold that writes what the unpack at `at` has written on the same
  // lanes, and reads packets.
  bool needs_nothing_before(std::size_t at) const {
    while (at > 0) {
      const BlockRecord& before = records_[--at];
      if (before.op.code == DeviceCode::kWait) return true;
      // A signal joins for the copy before it.
      if (before.op.code == DeviceCode::kSignal) return at > 0 && records_[at - 1].op.code == DeviceCode::kCopy;
      if (before.op.fences != 0) return false;
      if (before.op.code == DeviceCode::kPack ? !is_constant(before) : before.op.code != DeviceCode::kPad) return false;
      if (before.nop) return true;
    }
    return true;
  }

  // Whether nobody writes what the record packs.
  bool is_constant(const BlockRecord& pack) const {
    const DeviceOperand& source = pack.sources[0];
    return std::any_of(around_.constant.begin(), around_.constant.end(), [&](const RecordRange& range) {
      return source.place == range.place && source.value >= range.begin && source.value + pack.op.bytes <= range.end;
    });
  }

  using Readers = std::map<std::uint64_t, Reader>;  // by where the packets lie; of several, one
  template <class Reads>
  Readers readers(Reads reads) const {
    Readers found;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (dropped_[i] || !reads(records_[i].op.code)) continue;
      for (std::uint32_t s = 0; s < records_[i].sources.size(); ++s) {
        if (packed_source(records_[i].op, s)) found.emplace(records_[i].sources[s].value, Reader{i, s});
      }
    }
    return found;
  }
  // Drops the record's targets of which taken(packets, reader) says that nobody needs them any more.
  template <class Taken>
  void drop_targets(std::size_t at, const Readers& readers, Taken taken) {
    BlockRecord& record = records_[at];
    std::erase_if(record.targets, [&](const DeviceOperand& target) {
      const auto reader = readers.find(target.value);
      if (reader == readers.end()) return false;
      const BlockRecord& by = records_[reader->second.record];
      return reader->second.record > at && by.op.fences == 0 && by.op.bytes == record.op.bytes &&
             same(by.sources[reader->second.source], target) && around_.passed_on_once(target, record.op.bytes) &&
             taken(reader->second);
    });
    if (record.targets.empty()) drop(at);
  }

  // Where a message ends within a chunk: zeros that the block itself waits for.
  void drop_own_pads() {
    const Readers waits = readers([](DeviceCode code) { return code == DeviceCode::kAwait; });
    for (std::size_t i = 0; i < records_.size(); ++i) {
      if (records_[i].op.code != DeviceCode::kPad || records_[i].op.fences != 0) continue;
      drop_targets(i, waits, [&](const Reader& by) {
        drop(by.record);
        return true;
      });
    }
  }

  void take_constants() {
    const Readers takers =
        readers([](DeviceCode code) { return code == DeviceCode::kFold || code == DeviceCode::kUnpack; });
    for (std::size_t i = 0; i < records_.size(); ++i) {
      const BlockRecord& pack = records_[i];
      if (pack.op.code != DeviceCode::kPack || pack.op.fences != 0 || !is_constant(pack)) continue;
      drop_targets(i, takers, [&](const Reader& by) { return take_constant(pack.sources[0], by); });
    }
  }

  // Whether the reader now reads `plain`: a fold has place for one.
  bool take_constant(const DeviceOperand& plain, const Reader& by) {
    BlockRecord& reader = records_[by.record];
    if (reader.op.code == DeviceCode::kFold) {
      if (reader.op.plain != kNoPlain) return false;
      reader.op.plain = static_cast<std::uint8_t>(by.source);
    } else {
      // Copies have other lanes than packets: they must know what those have been told.
      reader.op.code = DeviceCode::kCopy;
      for (std::size_t i = 0; i < by.record; ++i) reader.nop = reader.nop || takes_packets(records_[i].op);
    }
    reader.sources[by.source] = plain;
    return true;
  }

  void drop(std::size_t at) { dropped_[at] = true; }
  // What the plan joins before a record that is dropped, it joins before the next one.
  void erase_dropped() {
    bool nop = false;
    std::size_t kept = 0;
    for (std::size_t i = 0; i < records_.size(); ++i) {
      nop = nop || records_[i].nop;
      if (dropped_[i]) continue;
      records_[i].nop = nop;
      nop = false;
      if (kept != i) records_[kept] = std::move(records_[i]);
      ++kept;
    }
    records_.erase(records_.begin() + static_cast<std::ptrdiff_t>(kept), records_.end());
    dropped_.assign(kept, false);
  }

  BlockRecords& records_;
  const Surroundings& around_;
  std::vector<bool> dropped_;
};

}  // namespace

void simplify(BlockRecords& records, const Surroundings& around) { Simplifier(records, around).run(); }

}  // namespace tutti::executor
