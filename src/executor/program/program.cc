// Plans to programs.
#include "executor/program/program.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <tuple>

#include "executor/program/inflow.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::executor {

using plan::ChannelKind;
using plan::Format;
using plan::Operand;
using plan::Operation;
using plan::OpKind;

namespace {

// A loop is unrolled: past this a plan's unit_size does not suit the message.
constexpr std::size_t kMostInstructions = std::size_t{1} << 24;

}  // namespace

class Decoder {
 public:
  Decoder(const Tables& tables, std::int64_t input_bytes, std::int64_t output_bytes, Program& program)
      : tables_(tables),
        plan_(tables.plan()),
        own_(plan_.ranks[program.rank_]),
        rank_(program.rank_),
        sizes_(plan_, input_bytes, output_bytes),
        block_bytes_{input_bytes, output_bytes},
        program_(program) {}

  void decode() {
    program_.agents_ = static_cast<std::uint32_t>(own_.channels_of(ChannelKind::kPort).size());
    posts_.assign(program_.agents_, 0);
    for (std::size_t b = 0; b < own_.blocks.size(); ++b) {
      block_ = &own_.blocks[b];
      list_ = &program_.blocks_.emplace_back();
      for (std::size_t i = 0; i < block_->operations.size(); ++i) {
        const Operation& op = block_->operations[i];
        const Position position{static_cast<std::int32_t>(b), static_cast<std::int32_t>(i), -1};
        if (op.kind == OpKind::kPipeline) {
          unroll(op, position);
        } else {
          at(position);
          decode(op, [&] { return sizes_.moves_of(rank_, *block_, op); });
        }
      }
    }
    if (!tables_.one_host()) mark_riders();
    for (const std::uint32_t posts : posts_) program_.most_posts_ = std::max(program_.most_posts_, posts);
  }

 private:
  void at(const Position& position) { program_.positions_.push_back(position); }

  void unroll(const Operation& op, Position position) {
    const auto first = static_cast<std::uint32_t>(program_.positions_.size());
    for (std::size_t k = 0; k < op.body.size(); ++k) {
      position.inner = static_cast<std::int32_t>(k);
      at(position);
    }
    const std::int64_t iterations = sizes_.iterations(op.iteration);
    for (std::int64_t i = 0; i < iterations; ++i) {
      for (std::size_t k = 0; k < op.body.size(); ++k) {
        position_ = first + static_cast<std::uint32_t>(k);
        decode_at(op.body[k], [&] { return sizes_.moves_of(rank_, *block_, op.body[k], op.iteration, i); });
      }
    }
  }

  template <class Moves>
  void decode(const Operation& op, const Moves& moves) {
    position_ = static_cast<std::uint32_t>(program_.positions_.size()) - 1;
    decode_at(op, moves);
  }

  template <class Moves>
  void decode_at(const Operation& op, const Moves& moves) {
    using plan::SyncKind;
    const plan::OperationRules& rules = plan::rules_of(op.kind);
    switch (rules.sync) {
      case SyncKind::kNop:
        return;  // a thread block has one lane here: nothing to join
      case SyncKind::kBarrier:
        return emit_barrier(op);
      case SyncKind::kSemaphoreRelease:
      case SyncKind::kSemaphoreAcquire:
        for (const std::int32_t id : op.semaphore_ids) {
          emit_counter(rules.sync == SyncKind::kSemaphoreRelease ? Code::kRelease : Code::kAcquire,
                       static_cast<std::uint32_t>(id));
        }
        return;
      case SyncKind::kSignal:
      case SyncKind::kRelaxedSignal:
        for (const std::int32_t id : op.channel_ids) emit_signal(op.channel, id);
        return;
      case SyncKind::kWait:
      case SyncKind::kRelaxedWait:
        for (const std::int32_t id : op.channel_ids) emit_wait(op.channel, id);
        return;
      case SyncKind::kFlush:
        for (const std::int32_t id : op.channel_ids) emit_flush(id);
        return;
      case SyncKind::kNone:
        break;
    }
    const std::vector<plan::Move> pieces = moves();
    for (const plan::Move& move : pieces) emit_move(op, move);
    emit_rest_of_packets(op, pieces);
    if (rules.signals) {
      for (const std::int32_t id : op.channel_ids) emit_signal(ChannelKind::kPort, id);
    }
    if (rules.flushes) {
      for (const std::int32_t id : op.channel_ids) emit_flush(id);
    }
  }

  Instruction make(Code code) const {
    Instruction instruction;
    instruction.code = code;
    instruction.position = position_;
    return instruction;
  }

  // One that moves bytes: its pointers come next.
  Instruction moving(Code code, std::int64_t bytes) const {
    Instruction instruction = make(code);
    instruction.bytes = bytes;
    instruction.pointers = static_cast<std::uint32_t>(program_.pointers_.size());
    return instruction;
  }

  void emit(const Instruction& instruction) {
    if (++count_ > kMostInstructions) {
      throw_error(ErrorKind::kUnsupported, "plan \"" + plan_.name + "\": more than " +
                                               std::to_string(kMostInstructions) +
                                               " steps for this message: its pipelines need a larger unit_size");
    }
    program_.most_operands_ = std::max({program_.most_operands_, instruction.sources, instruction.targets});
    list_->push_back(instruction);
  }

  void emit_counter(Code code, std::uint32_t counter) {
    Instruction instruction = make(code);
    instruction.counter = counter;
    emit(instruction);
  }

  void emit_barrier(const Operation& op) {
    const auto id = barriers_.try_emplace(op.barrier_id, static_cast<std::uint32_t>(barriers_.size())).first->second;
    program_.barriers_ = static_cast<std::uint32_t>(barriers_.size());
    Instruction instruction = make(Code::kBarrier);
    instruction.counter = id;
    instruction.agent = static_cast<std::uint32_t>(op.barrier_blocks);
    emit(instruction);
  }

  std::int32_t channel_of(ChannelKind kind, std::int32_t id) const { return block_->channels_of(kind)[id]; }

  void emit_signal(ChannelKind kind, std::int32_t id) {
    const std::int32_t channel = channel_of(kind, id);
    Instruction instruction = make(kind == ChannelKind::kPort ? Code::kPostSignal : Code::kSignal);
    instruction.peer = own_.channels_of(kind)[channel];
    instruction.counter = tables_.counter(kind, instruction.peer, tables_.links().partner(kind, rank_, channel));
    instruction.agent = static_cast<std::uint32_t>(channel);
    if (kind == ChannelKind::kPort) address_post(instruction);
    emit(instruction);
  }

  void emit_wait(ChannelKind kind, std::int32_t id) {
    const std::int32_t channel = channel_of(kind, id);
    Instruction instruction = make(Code::kWait);
    instruction.peer = own_.channels_of(kind)[channel];
    instruction.counter = tables_.counter(kind, rank_, channel);
    emit(instruction);
  }

  void emit_flush(std::int32_t id) {
    Instruction instruction = make(Code::kFlush);
    instruction.agent = static_cast<std::uint32_t>(channel_of(ChannelKind::kPort, id));
    emit(instruction);
  }

  void emit_move(const Operation& op, const plan::Move& move) {
    if (op.channel == ChannelKind::kPort) return emit_posts(op, move);
    if (!plan::rules_of(op.kind).pairwise) {
      return emit_one(op, move, 0, op.sources.size(), 0, op.destinations.size());
    }
    const auto pair = static_cast<std::size_t>(move.pair);
    emit_one(op, move, pair, pair + 1, pair, pair + 1);
  }

  // Sources [s, s_end) to destinations [d, d_end) of one move.
  void emit_one(const Operation& op, const plan::Move& move, std::size_t s, std::size_t s_end, std::size_t d,
                std::size_t d_end) {
    Instruction instruction = moving(code_of(op), move.bytes);
    instruction.reduce = op.reduce;
    // A fold of packets takes the plain operand last.
    const bool plain_last = plan::rules_of(op.kind).fold == plan::Fold::kRestThenFirst;
    for (std::size_t i = s + (plain_last ? 1 : 0); i < s_end; ++i) add_source(op, move, i);
    if (plain_last) add_source(op, move, s);
    instruction.sources = pointers_since(instruction);
    for (std::size_t i = d; i < d_end; ++i) {
      add_pointers(op, op.destinations[i], plan::destination_rule(op, i).format, move.destinations[nth(op, i)]);
    }
    instruction.targets = pointers_since(instruction) - instruction.sources;
    emit(instruction);
  }

  void emit_posts(const Operation& op, const plan::Move& move) {
    if (op.kind == OpKind::kReadPutPackets)
      emit_packets(Code::kAwaitPackets, op, op.sources[0], move.sources[0], move.bytes);
    if (plan::rules_of(op.kind).pairwise) {
      const auto pair = static_cast<std::size_t>(move.pair);
      return emit_post(op, move, pair, pair);
    }
    for (std::size_t i = 0; i < op.destinations.size(); ++i) emit_post(op, move, 0, i);
  }

  void emit_post(const Operation& op, const plan::Move& move, std::size_t source, std::size_t destination) {
    const std::int32_t channel = channel_of(ChannelKind::kPort, op.channel_ids[destination]);
    Instruction instruction = moving(Code::kPost, move.bytes);
    instruction.packets = plan::source_rule(op, source).format == Format::kPackets;
    instruction.agent = static_cast<std::uint32_t>(channel);
    instruction.peer = own_.channels_of(ChannelKind::kPort)[channel];
    add_source(op, move, source);
    add_pointers(op, op.destinations[destination], plan::destination_rule(op, destination).format,
                 move.destinations[nth(op, destination)]);
    instruction.sources = instruction.targets = 1;
    address_post(instruction);
    emit(instruction);
  }

  void address_post(Instruction& instruction) {
    ++posts_[instruction.agent];
    instruction.far = !tables_.share_memory(rank_, instruction.peer);
    if (!instruction.far) return;
    instruction.counter = stream_of(own_, instruction.agent, static_cast<std::size_t>(block_ - own_.blocks.data()));
  }

  // A signal rides on the put before it in its stream if its thread block does nothing else between the two.
  void mark_riders() {
    std::vector<char> fresh(program_.agents_);  // a put with nothing but posts after it
    for (auto& list : program_.blocks_) {
      std::fill(fresh.begin(), fresh.end(), 0);
      for (Instruction& instruction : list) {
        if (instruction.code == Code::kPost) {
          fresh[instruction.agent] = 1;
        } else if (instruction.code == Code::kPostSignal) {
          instruction.rides = instruction.far && fresh[instruction.agent] != 0;
        } else {
          std::fill(fresh.begin(), fresh.end(), 0);
        }
      }
    }
  }

  // Input and output end where the message ends, packets at a whole chunk: what they order must not depend on the size
  // of the message. So whoever packs a shorter piece fills the chunk up with packets of zeros, and whoever unpacks one
  // waits for these too.
  void emit_rest_of_packets(const Operation& op, const std::vector<plan::Move>& pieces) {
    if (op.channel == ChannelKind::kPort) return;
    for (std::size_t i = 0; i < op.sources.size(); ++i) {
      if (plan::source_rule(op, i).format != Format::kPackets) continue;
      for_each_gap(
          op, op.sources[i], pieces, [i](const plan::Move& piece) { return piece.sources[i]; },
          [&](std::int64_t offset, std::int64_t bytes) {
            emit_packets(Code::kAwaitPackets, op, op.sources[i], offset, bytes);
          });
    }
    const bool pairwise = plan::rules_of(op.kind).pairwise;
    for (std::size_t i = 0; i < op.destinations.size(); ++i) {
      if (plan::destination_rule(op, i).format != Format::kPackets) continue;
      std::vector<plan::Move> own;
      std::copy_if(pieces.begin(), pieces.end(), std::back_inserter(own),
                   [&](const plan::Move& piece) { return !pairwise || static_cast<std::size_t>(piece.pair) == i; });
      for_each_gap(
          op, op.destinations[i], own, [&](const plan::Move& piece) { return piece.destinations[nth(op, i)]; },
          [&](std::int64_t offset, std::int64_t bytes) {
            emit_packets(Code::kPad, op, op.destinations[i], offset, bytes);
          });
    }
  }

  // Calls visit(offset, bytes) for what the operand's chunks hold beside `pieces`: the offset of its packets in the
  // buffer, and the bytes of their payload.
  template <class OffsetOf, class Visit>
  void for_each_gap(const Operation& op, const Operand& operand, const std::vector<plan::Move>& pieces,
                    const OffsetOf& offset_of, const Visit& visit) {
    Operation whole;
    whole.kind = OpKind::kReadPutPackets;
    whole.channel = op.channel;
    whole.part = op.part;
    whole.sources = whole.destinations = {operand};
    for (const plan::Move& full : sizes_.moves_of(rank_, *block_, whole)) {
      std::int64_t done = 0;  // of the payload of `full`
      const auto visit_to = [&](std::int64_t end) {
        if (end > done) visit(full.destinations[0] + 2 * done, end - done);
      };
      for (const plan::Move& piece : pieces) {
        const std::int64_t begin = (offset_of(piece) - full.destinations[0]) / 2;
        visit_to(begin);
        done = begin + packets_of(piece.bytes) * kPayload;
      }
      visit_to(full.bytes);
    }
  }

  // kAwaitPackets of a source, kPad of a destination.
  void emit_packets(Code code, const Operation& op, const Operand& operand, std::int64_t offset, std::int64_t bytes) {
    Instruction instruction = moving(code, bytes);
    add_pointers(op, operand, Format::kPackets, offset);
    (code == Code::kPad ? instruction.targets : instruction.sources) = pointers_since(instruction);
    emit(instruction);
  }

  static Code code_of(const Operation& op) {
    switch (op.kind) {
      case OpKind::kCopyPackets:
      case OpKind::kPutPackets:
        return Code::kPack;
      case OpKind::kReadPutPackets:
      case OpKind::kGroupStorePackets:
        return Code::kForward;
      case OpKind::kUnpackPackets:
        return Code::kUnpack;
      default:
        if (plan::rules_of(op.kind).fold == plan::Fold::kRestThenFirst) return Code::kFold;
        return plan::reduces(op.kind) ? Code::kReduce : Code::kCopy;
    }
  }

  std::uint32_t pointers_since(const Instruction& instruction) const {
    return static_cast<std::uint32_t>(program_.pointers_.size()) - instruction.pointers;
  }

  // Where a move keeps the offset of operand `index`: that of a pair has one on each side.
  static std::size_t nth(const Operation& op, std::size_t index) {
    return plan::rules_of(op.kind).pairwise ? 0 : index;
  }

  void add_source(const Operation& op, const plan::Move& move, std::size_t index) {
    add_pointers(op, op.sources[index], plan::source_rule(op, index).format, move.sources[nth(op, index)]);
  }

  // One pointer, or one for each rank of a group.
  void add_pointers(const Operation& op, const Operand& operand, Format format, std::int64_t offset) {
    if (operand.place != Operand::Place::kGroup) {
      const plan::Place place = plan::place_of(plan_, rank_, *block_, op, operand);
      return add_pointer(place.rank, place.buffer, format, offset);
    }
    const std::int32_t channel = channel_of(ChannelKind::kSwitch, operand.id);
    const plan::Links::Group& group = tables_.links().groups()[tables_.links().group_of(rank_, channel)];
    for (const std::int32_t member : group.ranks) add_pointer(member, group.buffer, format, offset);
  }

  void add_pointer(std::int32_t rank, plan::BufferKind buffer, Format format, std::int64_t offset) {
    BaseRef ref{rank, Area::kPlain, 0};
    if (buffer != plan::BufferKind::kScratch) {
      const std::int64_t bytes = block_bytes_[static_cast<std::size_t>(buffer)];
      ref.area = buffer == plan::BufferKind::kInput ? Area::kInput : Area::kOutput;
      ref.block = static_cast<std::int32_t>(offset / bytes);
      offset %= bytes;
    } else if (format == Format::kPackets) {
      ref.area = Area::kPackets;
    }
    const auto [found, added] =
        known_.try_emplace({ref.rank, ref.area, ref.block}, static_cast<std::uint32_t>(program_.bases_.size()));
    if (added) program_.bases_.push_back(ref);
    program_.pointers_.push_back({found->second, offset});
  }

  const Tables& tables_;
  const plan::Plan& plan_;
  const plan::Rank& own_;
  std::int32_t rank_;
  plan::Sizes sizes_;
  std::array<std::int64_t, 2> block_bytes_;
  Program& program_;
  const plan::ThreadBlock* block_ = nullptr;
  std::vector<Instruction>* list_ = nullptr;
  std::uint32_t position_ = 0;
  std::size_t count_ = 0;
  std::vector<std::uint32_t> posts_;                // by agent
  std::map<std::int32_t, std::uint32_t> barriers_;  // ids of the plan to dense ones
  std::map<std::tuple<std::int32_t, Area, std::int32_t>, std::uint32_t> known_;
};

Program::Program(const Tables& tables, std::int32_t rank, std::int64_t input_bytes, std::int64_t output_bytes)
    : rank_(rank) {
  Decoder(tables, input_bytes, output_bytes, *this).decode();
  for (std::int32_t peer = 0; peer < tables.ranks(); ++peer) {
    const auto& theirs = tables.plan().ranks[static_cast<std::size_t>(peer)].channels_of(ChannelKind::kPort);
    if (tables.share_memory(peer, rank) || std::find(theirs.begin(), theirs.end(), rank) == theirs.end()) continue;
    Program sender(peer);
    Decoder(tables, input_bytes, output_bytes, sender).decode();
    add_inflows(tables, sender);
  }
}

}  // namespace tutti::executor
