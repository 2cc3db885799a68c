// Programs to records: addresses and words.
#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "executor/cuda/block_records.h"
#include "executor/cuda/device_plan.h"
#include "executor/cuda/packet_uses.h"
#include "executor/cuda/simplify.h"
#include "executor/program/packet_writers.h"
#include "executor/program/packets.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

constexpr int kIn = 0, kOut = 1;
constexpr Position kAround{-1, -1, -1};

}  // namespace

class Lowering {
 public:
  Lowering(const DevicePlan& device, const DeviceVariant& variant, const DeviceMemory& memory)
      : device_(device),
        tables_(device.tables_),
        rank_(device.rank_),
        variant_(variant),
        memory_(memory),
        program_(tables_, rank_, static_cast<std::int64_t>(variant.bytes), static_cast<std::int64_t>(variant.bytes)) {
    place_buffers();
  }

  DeviceRecords make() {
    const std::vector<Copy> loads = loads_before(), stores = stores_after();
    const Surroundings around = surroundings();
    for (block_ = 0; block_ < device_.blocks_; ++block_) {
      begin_block();
      emit_copies(loads, DeviceCode::kCopy);
      if (!loads.empty()) meet(device_.around());
      if (block_ < program_.blocks().size()) {
        for (const Instruction& one : program_.blocks()[block_]) {
          at_ = program_.positions()[one.position];
          emit(one);
        }
        at_ = kAround;
      }
      if (!stores.empty()) meet(device_.around());
      emit_copies(stores, variant_.averages ? DeviceCode::kAverage : DeviceCode::kCopy);
      simplify(records_, around);
      if (variant_.mapped()) await_before_peers(records_, agreed());
      decide_joins(records_);
      end_block();
    }
    return std::move(out_);
  }

 private:
  // A range of the rank's own that is copied before or after the plan.
  struct Copy {
    DeviceOperand from, to;
  };

  // Buffers.

  bool in_place() const { return device_.plan().in_place; }
  bool has(int side) const { return side == kIn ? variant_.has_input : variant_.has_output; }
  bool mapped(int side) const { return side == kIn ? variant_.mapped_input : variant_.mapped_output; }

  void place_buffers() {
    if (in_place()) {
      whole_ = device_.whole();
      const bool reached = device_.reached(kIn) || device_.reached(kOut);
      shadowed_[whole_] = whole_ == kIn || (reached && !mapped(whole_)) || !has(whole_);
      return;
    }
    for (const int side : {kIn, kOut}) {
      shadowed_[side] = (device_.reached(side) && !mapped(side)) || !has(side);
    }
    if (device_.plan().writes_input) shadowed_[kIn] = true;
    // Peers read an input that is mapped where it lies.
    if (variant_.overlaps) shadowed_[mapped(kIn) ? kOut : kIn] = true;
  }

  static DeviceOperand user(int side, std::int32_t block) {
    DeviceOperand operand;
    operand.place = static_cast<std::uint16_t>(1 + side * kUserBlocks + block);
    return operand;
  }
  static DeviceOperand peer(int side, std::int32_t rank, std::int32_t block) {
    DeviceOperand operand;
    operand.place = static_cast<std::uint16_t>(kPeers + (side * device::kMaxRanks + rank) * kUserBlocks + block);
    return operand;
  }
  static DeviceOperand fixed(const std::byte* address) {
    DeviceOperand operand;
    operand.value = reinterpret_cast<std::uintptr_t>(address);
    return operand;
  }
  DeviceOperand shadow(int side, std::int32_t rank, std::int32_t block) const {
    const std::size_t before = side == kIn ? 0 : device_.rank_blocks(kIn);
    const auto r = static_cast<std::size_t>(rank);
    return fixed(memory_.ranks[r] + device_.layouts_[r].total +
                 (before + static_cast<std::size_t>(block)) * DevicePlan::stride(device_.segment_bytes_));
  }
  // Rank block `block` of the plan's input or output of `rank`.
  DeviceOperand buffer(int side, std::int32_t rank, std::int32_t block) const {
    if (in_place()) {
      // The smaller buffer is the rank's own block of the larger.
      if (device_.rank_blocks(side) < device_.rank_blocks(whole_)) block = rank;
      side = whole_;
    }
    if (rank != rank_ && mapped(side)) return peer(side, rank, block);
    if (shadowed_[side]) return shadow(side, rank, block);
    if (rank != rank_) throw_error(ErrorKind::kInternal, "a plan reaches into a buffer that has no shadow");
    return user(side, block);
  }

  std::vector<Copy> loads_before() const {
    std::vector<Copy> copies;
    if (!has(kIn)) return copies;
    const bool needed = in_place() ? shadowed_[whole_] || !variant_.input_in_place : shadowed_[kIn];
    for (std::size_t b = 0; needed && b < device_.rank_blocks(kIn); ++b) {
      const auto block = static_cast<std::int32_t>(b);
      copies.push_back({user(kIn, block), buffer(kIn, rank_, block)});
    }
    return copies;
  }
  std::vector<Copy> stores_after() const {
    std::vector<Copy> copies;
    if (!has(kOut)) return copies;
    const bool needed = variant_.averages || shadowed_[in_place() ? whole_ : kOut];
    for (std::size_t b = 0; needed && b < device_.rank_blocks(kOut); ++b) {
      const auto block = static_cast<std::int32_t>(b);
      copies.push_back({buffer(kOut, rank_, block), user(kOut, block)});
    }
    return copies;
  }

  // Each block copies its share of every range.
  void emit_copies(const std::vector<Copy>& copies, DeviceCode code) {
    const std::uint64_t share = (variant_.bytes + 16 * device_.blocks_ - 1) / (16 * device_.blocks_) * 16;
    const std::uint64_t begin = std::min<std::uint64_t>(variant_.bytes, block_ * share);
    const std::uint64_t bytes = std::min(share, variant_.bytes - begin);
    for (const Copy& copy : copies) {
      if (bytes == 0) return;
      BlockRecord record = start(code, bytes);
      record.sources = {copy.from};
      record.targets = {copy.to};
      record.sources[0].value += begin;
      record.targets[0].value += begin;
      push(std::move(record));
    }
  }

  // Records.

  static BlockRecord start(DeviceCode code, std::uint64_t bytes = 0) {
    BlockRecord record;
    record.op.code = code;
    record.op.bytes = bytes;
    return record;
  }

  void begin_block() {
    records_.clear();
    joined_ = false;
    merged_.clear();
    last_ = {-1, -1, -1};
  }
  void push(BlockRecord record) {
    merged_.clear();
    record.position = at_;
    record.nop = std::exchange(joined_, false);
    records_.push_back(std::move(record));
  }
  void end_block() {
    DeviceBlock block;
    block.first = static_cast<std::uint32_t>(out_.ops.size());
    block.first_operand = static_cast<std::uint32_t>(out_.operands.size());
    for (const BlockRecord& record : records_) {
      DeviceOp op = record.op;
      op.first = static_cast<std::uint32_t>(out_.operands.size());
      op.sources = static_cast<std::uint32_t>(record.sources.size());
      op.targets = static_cast<std::uint32_t>(record.targets.size());
      out_.ops.push_back(op);
      out_.positions.push_back(record.position);
      out_.operands.insert(out_.operands.end(), record.sources.begin(), record.sources.end());
      out_.operands.insert(out_.operands.end(), record.targets.begin(), record.targets.end());
    }
    block.count = static_cast<std::uint32_t>(out_.ops.size()) - block.first;
    block.operands = static_cast<std::uint32_t>(out_.operands.size()) - block.first_operand;
    out_.blocks.push_back(block);
  }

  // What simplify() may count on. Only a rank that packs something for itself has what it looks for.
  Surroundings surroundings() const {
    Surroundings around;
    if (in_place() || device_.plan().writes_input || !has(kIn) || !packs_for_itself()) return around;
    const auto uses = std::make_shared<const PacketUses>(tables_, rank_, static_cast<std::int64_t>(variant_.bytes));
    if (uses->input_written()) return around;
    for (std::size_t b = 0; b < device_.rank_blocks(kIn); ++b) {
      const DeviceOperand at = buffer(kIn, rank_, static_cast<std::int32_t>(b));
      // The output that shares bytes with it may be the caller's too.
      if (at.place != kFixed && variant_.overlaps) continue;
      around.constant.push_back({at.place, at.value, at.value + variant_.bytes, false});
    }
    const auto own = static_cast<std::size_t>(rank_);
    const auto first = reinterpret_cast<std::uintptr_t>(memory_.ranks[own] + device_.layouts_[own].packets);
    around.passed_on_once = [uses, first](const DeviceOperand& packets, std::uint64_t bytes) {
      if (packets.place != kFixed || packets.value < first) return false;
      const auto begin = static_cast<std::int64_t>(packets.value - first);
      return uses->passed_on_once(begin, begin + packets_of(static_cast<std::int64_t>(bytes)) * kPacketBytes);
    };
    return around;
  }
  bool packs_for_itself() const {
    const auto packs = [this](const Instruction& one) {
      for (std::uint32_t i = 0; one.code == Code::kPack && i < one.targets; ++i) {
        const BaseRef& base = program_.bases()[program_.pointers()[one.pointers + one.sources + i].base];
        if (base.rank == rank_ && base.area == Area::kPackets) return true;
      }
      return false;
    };
    return std::any_of(program_.blocks().begin(), program_.blocks().end(),
                       [&](const auto& block) { return std::any_of(block.begin(), block.end(), packs); });
  }

  // Words.

  std::uint32_t slot(DevicePlan::Use use, std::uint32_t id, std::uint32_t other = 0) const {
    return device_.slots_.at({static_cast<std::uint32_t>(block_), use, id, other});
  }
  std::byte* word(DevicePlan::Use use, std::uint32_t id, std::uint32_t block) const {
    return memory_.state + device_.words_offset() + DevicePlan::kLine * device_.words_.at({use, id, block});
  }
  std::byte* counter(std::int32_t rank, std::uint32_t index) const {
    return memory_.ranks[static_cast<std::size_t>(rank)] + sizeof(CounterWord) * (index - tables_.first_counter(rank));
  }

  void put_word(DeviceCode code, const std::byte* at, std::uint32_t slot, std::int32_t peer) {
    const bool follows = !merged_.empty() && records_.back().op.code == code && merged_.insert(slot).second;
    if (!follows) {
      push(start(code));
      merged_ = {slot};
    }
    DeviceOperand operand = fixed(at);
    operand.extra = slot;
    operand.peer = static_cast<std::uint16_t>(peer);
    records_.back().sources.push_back(operand);
  }

  DeviceOperand agreed() const {
    DeviceOperand operand = fixed(word(DevicePlan::Use::kAgree, 0, 0));
    operand.extra = slot(DevicePlan::Use::kAgree, 0);
    operand.peer = static_cast<std::uint16_t>(rank_);
    return operand;
  }

  void meet(std::uint32_t id) {
    const auto b = static_cast<std::uint32_t>(block_);
    put_word(DeviceCode::kSignal, word(DevicePlan::Use::kArrive, id, b), slot(DevicePlan::Use::kArrive, id), rank_);
    // A block awaits itself too, unless it is the only one: so the words are the same in all blocks, which may share a
    // compiled function.
    const std::vector<std::uint32_t>& those = device_.meets_[id];
    if (those.size() == 1) return;
    for (const std::uint32_t other : those) {
      put_word(DeviceCode::kWait, word(DevicePlan::Use::kArrive, id, other), slot(DevicePlan::Use::kMeet, id, other),
               rank_);
    }
  }

  // Data.

  DeviceOperand operand_of(const Pointer& pointer) const {
    const BaseRef& ref = program_.bases()[pointer.base];
    const auto r = static_cast<std::size_t>(ref.rank);
    const auto at = static_cast<std::uint64_t>(pointer.offset);
    const auto half = [this](std::size_t bytes) {
      return device_.halves() == 2 ? static_cast<std::uint32_t>(bytes / 16) : 0u;
    };
    DeviceOperand operand;
    switch (ref.area) {
      case Area::kInput:
      case Area::kOutput:
        operand = buffer(ref.area == Area::kInput ? kIn : kOut, ref.rank, ref.block);
        break;
      case Area::kPlain:
        operand = fixed(memory_.ranks[r] + device_.layouts_[r].plain);
        operand.extra = half(device_.layouts_[r].plain_half);
        break;
      case Area::kPackets:
        operand = fixed(memory_.ranks[r] + device_.layouts_[r].packets);
        operand.extra = half(device_.layouts_[r].packets_half);
        break;
    }
    operand.value += at;
    operand.peer = static_cast<std::uint16_t>(rank_);
    return operand;
  }

  const plan::Operation& operation_of(const Instruction& one) const {
    const Position& position = program_.positions()[one.position];
    const plan::Rank& rank = device_.plan().ranks[static_cast<std::size_t>(rank_)];
    return plan::operation_at(rank, position.block, position.operation, position.inner);
  }

  // Whether the plan joins this block's lanes (a nop, which is no record) between what was emitted last and `one`: what
  // packets tell, they tell the lane that awaits them, and for the lane that stores them, until then.
  bool joined_before(const Instruction& one) {
    const Position& at = program_.positions()[one.position];
    const Position last = std::exchange(last_, at);
    const std::vector<plan::Operation>& list =
        device_.plan().ranks[static_cast<std::size_t>(rank_)].blocks[static_cast<std::size_t>(at.block)].operations;
    const auto nops = [](const std::vector<plan::Operation>& among, std::int32_t after, std::size_t before) {
      for (auto i = static_cast<std::size_t>(after + 1); i < std::min(before, among.size()); ++i) {
        const auto is_nop = [](const plan::Operation& op) { return op.kind == plan::OpKind::kNop; };
        if (is_nop(among[i]) || std::any_of(among[i].body.begin(), among[i].body.end(), is_nop)) return true;
      }
      return false;
    };
    const std::size_t all = std::numeric_limits<std::size_t>::max();
    if (last.operation < 0) return false;
    const auto body = [&](std::int32_t operation) -> const std::vector<plan::Operation>& {
      return list[static_cast<std::size_t>(operation)].body;
    };
    if (at.operation > last.operation) {
      return nops(list, last.operation, static_cast<std::size_t>(at.operation)) ||
             (last.inner >= 0 && nops(body(last.operation), last.inner, all)) ||
             (at.inner >= 0 && nops(body(at.operation), -1, static_cast<std::size_t>(at.inner)));
    }
    if (at.operation < last.operation) return nops(list, -1, all);
    if (at.inner < 0) return false;
    if (at.inner > last.inner) return nops(body(at.operation), last.inner, static_cast<std::size_t>(at.inner));
    return nops(body(at.operation), -1, all);  // the next turn, or another piece of the same
  }

  // Who writes the packets of the operation's `index`-th source on packets: the rank to blame if they do not come.
  std::int32_t writer_of(const plan::Operation& op, std::uint32_t index, std::uint32_t count) {
    std::vector<const plan::Operand*> packed;
    for (std::size_t i = 0; i < op.sources.size(); ++i) {
      if (plan::source_rule(op, i).format == plan::Format::kPackets) packed.push_back(&op.sources[i]);
    }
    if (packed.empty()) return rank_;
    const plan::Operand& operand = *packed[packed.size() == count ? index : 0];
    const auto [found, fresh] = writers_.try_emplace({operand.index, operand.size}, rank_);
    if (fresh) {
      for (const std::int32_t writer : packet_writers(device_.plan(), rank_, operand.index, operand.size)) {
        if (writer != rank_) found->second = writer;
      }
    }
    return found->second;
  }

  void emit_data(const Instruction& one, DeviceCode code) {
    if (one.bytes == 0) return;
    BlockRecord record = start(code, static_cast<std::uint64_t>(one.bytes));
    const plan::Operation& operation = operation_of(one);
    record.op.fences = operation.fence ? 1 : 0;
    if (code == DeviceCode::kFold) record.op.plain = static_cast<std::uint8_t>(one.sources - 1);
    std::uint32_t packed = 0;
    for (std::uint32_t i = 0; i < one.sources; ++i) packed += packed_source(record.op, i) ? 1 : 0;
    for (std::uint32_t i = 0; i < one.sources + one.targets; ++i) {
      DeviceOperand operand = operand_of(program_.pointers()[one.pointers + i]);
      if (i < one.sources && code != DeviceCode::kCopyPackets && packed_source(record.op, i)) {
        operand.peer = static_cast<std::uint16_t>(writer_of(operation, i, packed));
      }
      (i < one.sources ? record.sources : record.targets).push_back(operand);
    }
    if (code == DeviceCode::kFold && operation.fence) push_awaits(record);
    push(std::move(record));
  }
  // Where packets also say that plain data has come, they are waited for before any of it is read.
  void push_awaits(const BlockRecord& fold) {
    for (std::uint32_t i = 0; i < fold.sources.size(); ++i) {
      if (i == fold.op.plain) continue;
      BlockRecord record = start(DeviceCode::kAwait, fold.op.bytes);
      record.op.fences = 1;
      record.sources = {fold.sources[i]};
      push(std::move(record));
    }
  }

  void emit(const Instruction& one) {
    using Use = DevicePlan::Use;
    joined_ = joined_before(one) || joined_;
    switch (one.code) {
      case Code::kSignal:
        return put_word(DeviceCode::kSignal, counter(one.peer, one.counter), slot(Use::kSignal, one.agent), one.peer);
      case Code::kPostSignal:
        return put_word(DeviceCode::kSignal, counter(one.peer, one.counter), slot(Use::kPostSignal, one.agent),
                        one.peer);
      case Code::kWait:
        return put_word(DeviceCode::kWait, counter(rank_, one.counter), slot(Use::kWait, one.counter), one.peer);
      case Code::kRelease:
        return put_word(DeviceCode::kSignal, word(Use::kRelease, one.counter, 0), slot(Use::kRelease, one.counter),
                        rank_);
      case Code::kAcquire:
        return put_word(DeviceCode::kWait, word(Use::kRelease, one.counter, 0), slot(Use::kAcquire, one.counter),
                        rank_);
      case Code::kBarrier:
        return meet(one.counter);
      case Code::kCopy:
        return emit_data(one, DeviceCode::kCopy);
      case Code::kReduce:
        return emit_data(one, DeviceCode::kReduce);
      case Code::kPack:
        return emit_data(one, DeviceCode::kPack);
      case Code::kPad:
        return emit_data(one, DeviceCode::kPad);
      case Code::kForward:
        return emit_data(one, DeviceCode::kForward);
      case Code::kUnpack:
        return emit_data(one, DeviceCode::kUnpack);
      case Code::kFold:
        return emit_data(one, DeviceCode::kFold);
      case Code::kAwaitPackets:
        return emit_data(one, DeviceCode::kAwait);
      case Code::kPost:
        // A port's transfer is made at once, by the block that asks for it: before all that the port owes it.
        return emit_data(one, one.packets ? DeviceCode::kCopyPackets : DeviceCode::kCopy);
      case Code::kFlush:
        return;
    }
  }

  const DevicePlan& device_;
  const Tables& tables_;
  const std::int32_t rank_;
  const DeviceVariant& variant_;
  const DeviceMemory& memory_;
  const Program program_;
  int whole_ = kOut;  // in place: the side that holds both
  bool shadowed_[2] = {false, false};
  DeviceRecords out_;
  std::size_t block_ = 0;
  Position at_ = kAround;  // of the instruction at hand
  // Of the block at hand.
  BlockRecords records_;
  bool joined_ = false;             // by the plan, before the next record
  Position last_{-1, -1, -1};       // of the instruction emitted last
  std::set<std::uint32_t> merged_;  // slots of the words that the last record raises or awaits; empty: it is another
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> writers_;
};

DeviceRecords DevicePlan::records(const DeviceVariant& variant, const DeviceMemory& memory) const {
  return Lowering(*this, variant, memory).make();
}

}  // namespace tutti::executor
