#include "executor/cuda/emit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <utility>

#include "executor/cuda/alike.h"
#include "executor/cuda/block_records.h"
#include "executor/cuda/cluster_size.h"
#include "executor/cuda/rolled.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::executor {
namespace {

constexpr std::size_t kMostStatements = 1024;  // of a kernel: what the compiler takes many seconds for
constexpr std::size_t kMostEntries = 4096;     // of its tables: half of what a GPU has of constant memory
constexpr char kBehindEarly = '\f';            // in a block's text: between what comes before the call and the function

// Memory that records are made for. Only these numbers are looked at.
constexpr std::uint64_t kOwnSpace = device::kMaxRanks + 1;

DeviceMemory symbolic_memory(std::size_t ranks) {
  const auto at = [](std::uint64_t space) { return reinterpret_cast<std::byte*>(space << kSpaceBits); };
  DeviceMemory memory;
  for (std::size_t r = 0; r < ranks; ++r) memory.ranks.push_back(at(1 + r));
  memory.state = at(kOwnSpace);
  return memory;
}

// What stands in a comment: one line of printable characters.
std::string quoted(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < ' ' || c > '~' || c == '\\'; }, '?');
  return text;
}

std::string reducer(DataType dtype, ReduceOp op) {
  if (op == ReduceOp::kSum) {
    if (dtype == DataType::kFloat32) return "cuda::SumF32";
    if (dtype == DataType::kBfloat16) return "cuda::SumBf16";
    if (dtype == DataType::kFloat16) return "cuda::SumF16";
  }
  return "ReduceOne<DataType{" + std::to_string(static_cast<int>(dtype)) + "}, ReduceOp{" +
         std::to_string(static_cast<int>(op)) + "}>";
}

// Which words a thread block counts. Their counts are kept in the order of their slots.
class Counts {
 public:
  Counts(const DeviceRecords& records, std::span<const DeviceOp> ops) {
    for (const DeviceOp& op : ops) {
      for (std::uint32_t i = 0; is_word(op.code) && i < op.sources; ++i) ++used_[records.operands[op.first + i].extra];
    }
    int next = 0;
    for (const auto& [slot, used] : used_) index_[slot] = next++;
  }

  int size() const { return static_cast<int>(used_.size()); }
  int index(std::uint32_t slot) const { return index_.at(slot); }

  // f(index, how many, first slot, uses) for slots that follow each other; with `alike`, of as many uses.
  template <class F>
  void for_runs(bool alike, F f) const {
    for (auto at = used_.begin(); at != used_.end();) {
      auto end = std::next(at);
      int many = 1;
      for (; end != used_.end() && end->first == std::prev(end)->first + 1 && (!alike || end->second == at->second);
           ++end) {
        ++many;
      }
      f(index(at->first), many, at->first, at->second);
      at = end;
    }
  }

 private:
  std::map<std::uint32_t, std::uint64_t> used_;  // by slot
  std::map<std::uint32_t, int> index_;
};

class Emitter {
 public:
  Emitter(const DevicePlan& plan, const EmitRequest& request)
      : plan_(plan),
        request_(request),
        records_(plan.records(request.variant, symbolic_memory(plan.plan().ranks.size()))) {
    std::uint64_t most = 0;
    for (const DeviceOp& op : records_.ops) most = std::max(most, op.bytes);
    workers_ = static_cast<int>(
        std::clamp<std::uint64_t>((most + 16 * 32 - 1) / (16 * 32) * 32, 32, DevicePlan::kMostThreads));
    cluster_ = cluster_of(records_, request.most_cluster);
    for (std::size_t b = 0; b < records_.blocks.size(); ++b) counts_.emplace_back(records_, ops_of(b));
  }

  PlanSource make(const std::string& space) {
    std::vector<std::string> texts;
    std::vector<std::size_t> statements;
    int most_counts = 0;
    for (block_ = 0; block_ < records_.blocks.size(); ++block_) {
      statements_ = 0;
      texts.push_back(early() + kBehindEarly + function());
      statements.push_back(statements_);
      most_counts = std::max(most_counts, counts_[block_].size());
    }
    alike_ = merge_alike(texts, kMostEntries);
    std::size_t all = 0;
    for (const Alike& alike : alike_) all += statements[alike.blocks[0]];
    check_statements(all);
    const std::string workers = std::to_string(workers_), cluster = std::to_string(cluster_);

    PlanSource source;
    source.workers = workers_;
    source.cluster = cluster_;
    source.headers = heading() +
                     "#include \"algorithm/cuda/plan_call.cuh\"\n"
                     "#include \"executor/cuda/compiled_block.cuh\"\n";
    source.block = "\nnamespace tutti::executor::" + space + " {\n\n" + tables() + "struct Block : CompiledBlock<" +
                   reducer(request_.dtype, request_.op) + ", cuda::PlanTeam<" + cluster + ">, /*kWorkers=*/" + workers +
                   (cluster_ > 1 ? " * " + cluster : "") + ", /*kCounts=*/" + std::to_string(most_counts) +
                   ", /*kDivisor=*/" + std::to_string(plan_.plan().ranks.size()) +
                   "> {\n"
                   "  using CompiledBlock::CompiledBlock;\n\n" +
                   prepare() + run() + functions() + "};\n\n}  // namespace tutti::executor::" + space + "\n";
    source.kernel =
        "\n#if defined(__CUDACC__)\n"
        "extern \"C\" __global__ void __launch_bounds__(" +
        workers + " + tutti::cuda::kControlThreads" +
        // So large a block has its multiprocessor for itself, as the interpreter's has.
        (workers_ == DevicePlan::kMostThreads ? ", 1" : "") +
        ")\n"
        "    tutti_plan(const __grid_constant__ tutti::cuda::DeviceWorld world,\n"
        "               const __grid_constant__ tutti::executor::CompiledArgs args) {\n"
        "  tutti::cuda::run_plan_blocks<tutti::executor::" +
        space + "::Block>(tutti::cuda::PlanTeam<" + cluster +
        ">{}, world, args);\n"
        "}\n#endif\n";
    return source;
  }

 private:
  // The loop that is being written.
  struct Turn {
    std::size_t length = 0;                       // records of a turn; 0: no loop
    std::map<std::uint32_t, std::uint64_t> uses;  // of a slot, in a turn
  };

  std::span<const DeviceOp> ops_of(std::size_t block) const {
    return std::span(records_.ops).subspan(records_.blocks[block].first, records_.blocks[block].count);
  }

  void check_statements(std::size_t number) const {
    if (number <= kMostStatements) return;
    throw_error(ErrorKind::kUnsupported, "plan \"" + plan_.plan().name + "\": more than " +
                                             std::to_string(kMostStatements) +
                                             " different operations are too many for one kernel");
  }

  // The parts of the struct.

  std::string heading() const {
    const plan::Plan& plan = plan_.plan();
    const bool reduces = plan.reduce.has_value();
    std::string text = "// Plan \"" + quoted(plan.name) + "\", rank " + std::to_string(plan_.rank()) + " of " +
                       std::to_string(plan.ranks.size()) + ": " + quoted(plan.collective_name) + ", " +
                       std::to_string(request_.variant.bytes) + " bytes a rank block";
    if (reduces) {
      text += ", " + std::string(request_.variant.averages ? "average" : to_string(request_.op)) + " of " +
              std::string(to_string(request_.dtype));
    }
    return text + ".\n// Before each operation: its number in its thread block, its name, and the line that made it.\n";
  }

  // Of blocks that are alike but for them.
  static std::string table_name(const Alike& alike) { return "kApart" + std::to_string(alike.blocks[0]); }
  std::string tables() const {
    std::string text;
    for (const Alike& alike : alike_) {
      if (alike.rows.empty()) continue;
      text += "TUTTI_TABLE std::uint64_t " + table_name(alike) + "[" + std::to_string(alike.rows.size()) + "][" +
              std::to_string(alike.rows[0].size()) + "] = {";
      for (const std::vector<std::uint64_t>& row : alike.rows) {
        text += "\n    {";
        for (std::size_t i = 0; i < row.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(row[i]);
        text += "},";
      }
      text += "\n};\n\n";
    }
    return text;
  }

  static std::string early_of(const Alike& alike) { return alike.text.substr(0, alike.text.find(kBehindEarly)); }
  static std::string function_of(const Alike& alike) { return alike.text.substr(alike.text.find(kBehindEarly) + 1); }
  // What `text` names of its block's place among those that are alike.
  static std::string names(const Alike& alike, const std::string& text, const std::string& indent) {
    const bool row = !alike.rows.empty() && text.find("apart[") != std::string::npos;
    if (!row && text.find(" * n") == std::string::npos) return "";
    std::string made = indent + "const std::uint64_t n = behind(" + std::to_string(alike.blocks[0]) + ");\n";
    if (row) made += indent + "const auto& apart = " + table_name(alike) + "[n];\n";
    return made;
  }
  static std::string cases(const Alike& alike) {
    std::string text;
    for (const std::size_t block : alike.blocks) text += "      case " + std::to_string(block) + ":\n";
    text.pop_back();
    return text;
  }

  std::string prepare() const {
    std::string all;
    for (const Alike& alike : alike_) {
      const std::string body = early_of(alike);
      if (body.empty()) continue;
      all += cases(alike) + " {\n" + names(alike, body, "        ") + body + "        break;\n      }\n";
    }
    return "  TUTTI_DEVICE void prepare() {\n    begin();\n    switch (number()) {\n" + all +
           "      default:\n        break;\n    }\n  }\n\n";
  }

  std::string run() const {
    std::string all;
    for (const Alike& alike : alike_) {
      all += cases(alike) + "\n        ok = block_" + std::to_string(alike.blocks[0]) + "();\n        break;\n";
    }
    return "  TUTTI_DEVICE bool run(const device::Awaited& awaited) {\n    start(awaited);\n    bool ok = true;\n"
           "    switch (number()) {\n" +
           all + "      default:\n        break;\n    }\n    return ok ? finish() : give_up();\n  }\n";
  }

  std::string functions() const {
    std::string all;
    for (const Alike& alike : alike_) {
      const std::string body = function_of(alike);
      all += "\n  TUTTI_DEVICE bool block_" + std::to_string(alike.blocks[0]) + "() {\n" + names(alike, body, "    ") +
             body + "    return true;\n  }\n";
    }
    return all;
  }

  // Of the thread block `block_`.
  std::string early() const {
    std::string body;
    counts_[block_].for_runs(false, [&](int index, int many, std::uint32_t slot, std::uint64_t) {
      body += "        read_counts(" + std::to_string(index) + ", " + std::to_string(many) + ", " +
              varying(slot_offset(slot)) + ");\n";
    });
    if (loads_early(block_)) {
      const DeviceOp& op = ops_of(block_)[0];
      const char* const load = op.code == DeviceCode::kPack ? "load_pieces_early" : "load_early";
      body += "        " + std::string(load) + "(bytes<" + std::to_string(op.bytes) + ">, " +
              place(records_.operands[op.first], 0) + ");\n";
    }
    return body;
  }

  std::string function() {
    std::string text;
    done_.clear();
    said_.reset();
    const std::span<const DeviceOp> ops = ops_of(block_);
    for (const Stretch& stretch : roll(ops, records_.operands)) text += statements(stretch);
    text += "    if (join_failed()) return false;\n";
    counts_[block_].for_runs(true, [&](int index, int many, std::uint32_t slot, std::uint64_t used) {
      text += "    write_counts(" + std::to_string(index) + ", " + std::to_string(many) + ", " +
              varying(slot_offset(slot)) + ", " + std::to_string(used) + ");\n";
    });
    return text;
  }

  std::string statements(const Stretch& stretch) {
    const std::size_t first = records_.blocks[block_].first + stretch.first;
    const bool loop = stretch.turns > 1;
    turn_ = {};
    if (loop) {
      turn_.length = stretch.length;
      for (std::size_t i = first; i < first + stretch.length; ++i) {
        const DeviceOp& op = records_.ops[i];
        for (std::uint32_t k = 0; is_word(op.code) && k < op.sources; ++k) ++turn_.uses[slot_of(op, k)];
      }
    }
    const std::string indent(loop ? 6 : 4, ' ');
    std::string text;
    for (std::size_t i = first; i < first + stretch.length; ++i) {
      check_statements(++statements_);  // also of a block alone: its text would be long
      const DeviceOp& op = records_.ops[i];
      text += comment(i, indent);
      if (op.joins != 0) text += indent + "if (join_failed()) return false;\n";
      if (op.fences != 0) text += indent + "fence();\n";
      text += indent + statement(i) + ";\n";
      if (op.fences != 0) text += indent + "fence();\n";
    }
    if (loop) {
      for (const auto& [slot, uses] : turn_.uses) done_[slot] += uses * (stretch.turns - 1);
      text = "    TUTTI_ROLLED\n    for (std::uint64_t turn = 0; turn < " + std::to_string(stretch.turns) +
             "; ++turn) {\n" + text + "    }\n";
    }
    return text;
  }

  // Statements.

  std::string comment(std::size_t index, const std::string& indent) {
    const Position& at = records_.positions[index];
    const auto same = [&](const Position& other) {
      return at.block == other.block && at.operation == other.operation && at.inner == other.inner;
    };
    if (said_ && same(*said_)) return "";
    const bool begins = !said_;
    said_ = at;
    if (at.block < 0) {
      return indent + (begins ? "// Around the plan: what peers reach comes to its memory.\n"
                              : "// Around the plan: what peers have reached goes back.\n");
    }
    const plan::ThreadBlock& block =
        plan_.plan().ranks[static_cast<std::size_t>(plan_.rank())].blocks[static_cast<std::size_t>(at.block)];
    const plan::Operation* op = &block.operations[static_cast<std::size_t>(at.operation)];
    std::string number = std::to_string(at.operation);
    if (at.inner >= 0) {
      op = &op->body[static_cast<std::size_t>(at.inner)];
      number += "." + std::to_string(at.inner);
    }
    std::string text = indent + "// " + number + ": " + std::string(to_string(op->kind));
    if (!op->origin.empty()) text += ", " + quoted(op->origin);
    return text + "\n";
  }

  // Whether the block begins with an operation whose input may be read before the call has begun.
  bool loads_early(std::size_t block) const {
    const std::span<const DeviceOp> ops = ops_of(block);
    if (ops.empty() || ops[0].joins != 0 || ops[0].fences != 0 || ops[0].sources != 1) return false;
    if (ops[0].code != DeviceCode::kCopy && ops[0].code != DeviceCode::kPack) return false;
    const std::uint16_t from = records_.operands[ops[0].first].place;
    // A loop's first turn is no statement of its own.
    return from != kFixed && from <= kUserBlocks &&
           ops[0].bytes <= static_cast<std::uint64_t>(workers_) * 16 * static_cast<std::uint64_t>(cluster_) &&
           roll(ops, records_.operands)[0].turns == 1;
  }

  std::string statement(std::size_t index) {
    const DeviceOp& op = records_.ops[index];
    if (is_word(op.code)) return words(index);
    const auto operand = [&](std::uint32_t i) { return place_at(index, i); };
    const auto places = [&](std::uint32_t first, std::uint32_t many) {
      std::string list;
      for (std::uint32_t i = first; i < first + many; ++i) list += (i > first ? ", " : "") + operand(i);
      return "(" + list + ")";
    };
    const auto packets = [&](std::uint32_t i) {
      return "packets_of_rank(" + varying(records_.operands[op.first + i].peer) + ", " + operand(i) + ")";
    };
    const std::string bytes = "(bytes<" + std::to_string(op.bytes) + ">, ";
    const std::string targets = "to" + places(op.sources, op.targets) + ")";
    const bool early = index == records_.blocks[block_].first && loads_early(block_);
    switch (op.code) {
      case DeviceCode::kCopy:
        return (early ? "copy_early" : "copy") + bytes + operand(0) + ", " + targets;
      case DeviceCode::kReduce:
        return "reduce" + bytes + "from" + places(0, op.sources) + ", " + targets;
      case DeviceCode::kAverage:
        return "average" + bytes + operand(0) + ", " + targets;
      case DeviceCode::kPack:
      case DeviceCode::kPad:
        if (op.sources == 0) return "pad" + bytes + targets;
        return (early ? "pack_early" : "pack") + bytes + operand(0) + ", " + targets;
      case DeviceCode::kForward:
        return "forward" + bytes + packets(0) + ", " + targets;
      case DeviceCode::kCopyPackets:
        return "copy_packets" + bytes + operand(0) + ", " + targets;
      case DeviceCode::kUnpack:
        return "unpack" + bytes + packets(0) + ", " + operand(1) + ")";
      case DeviceCode::kAwait:
        return "await_packets" + bytes + packets(0) + ")";
      case DeviceCode::kFold: {
        std::string list;
        for (std::uint32_t i = 0; i < op.sources; ++i) {
          list += (i > 0 ? ", " : "") + (i == op.plain ? operand(i) : packets(i));
        }
        return "fold" + bytes + "of(" + list + "), " + operand(op.sources) + ", to" +
               places(op.sources + 1, op.targets - 1) + ")";
      }
      case DeviceCode::kSignal:
      case DeviceCode::kWait:
        break;
    }
    throw_error(ErrorKind::kInternal, "a record of no known kind");
  }

  std::string words(std::size_t index) {
    const DeviceOp& op = records_.ops[index];
    std::string list;
    for (std::uint32_t i = 0; i < op.sources; ++i) {
      const DeviceOperand& operand = records_.operands[op.first + i];
      const std::uint32_t slot = operand.extra;
      const std::uint64_t uses = turn_.length == 0 ? 0 : turn_.uses.at(slot);
      const std::string counted =
          std::to_string(counts_[block_].index(slot)) + ", " + std::to_string(++done_[slot]) + turns(uses);
      const std::uint64_t space = operand.value >> kSpaceBits;
      const std::string offset = varying(operand.value - (space << kSpaceBits)) + turns(step(index, i));
      if (i > 0) list += ",\n" + std::string(turn_.length > 0 ? 8 : 6, ' ');
      if (space == kOwnSpace) {
        list += "own_word(" + offset + ", " + counted + ")";
      } else {
        list +=
            "word_of_rank(" + varying(space - 1) + ", " + offset + ", " + counted + ", " + varying(operand.peer) + ")";
      }
    }
    return (op.code == DeviceCode::kSignal ? "signal(" : "wait(") + list + ")";
  }
  // Operands.

  std::uint32_t slot_of(const DeviceOp& op, std::uint32_t i) const { return records_.operands[op.first + i].extra; }
  std::uint64_t slot_offset(std::uint32_t slot) const { return plan_.slots_offset() + sizeof(std::uint64_t) * slot; }

  // By how much the operand's value differs from one turn to the next.
  std::uint64_t step(std::size_t index, std::uint32_t i) const {
    if (turn_.length == 0) return 0;
    return records_.operands[records_.ops[index + turn_.length].first + i].value -
           records_.operands[records_.ops[index].first + i].value;
  }
  // What a turn of the loop adds.
  static std::string turns(std::uint64_t step) {
    const auto signed_step = static_cast<std::int64_t>(step);
    if (step == 0) return "";
    return (signed_step < 0 ? " - " : " + ") + std::to_string(signed_step < 0 ? -signed_step : signed_step) + " * turn";
  }

  std::string place_at(std::size_t index, std::uint32_t i) const {
    return place(records_.operands[records_.ops[index].first + i], step(index, i));
  }
  static std::string place(const DeviceOperand& operand, std::uint64_t step) {
    const std::string each = turns(step);
    const std::string offset = each.empty() ? varying_offset(operand.value) : ", " + varying(operand.value) + each;
    if (operand.place >= kPeers) {
      const int index = operand.place - kPeers, rank = index / kUserBlocks;
      return (rank < device::kMaxRanks ? "peer_input(" : "peer_output(") + varying(rank % device::kMaxRanks) + ", " +
             varying(index % kUserBlocks) + offset + ")";
    }
    if (operand.place != kFixed) {
      const int index = operand.place - 1;
      return (index < kUserBlocks ? "input(" : "output(") + varying(index % kUserBlocks) + offset + ")";
    }
    const std::uint64_t space = operand.value >> kSpaceBits;
    const std::string half = operand.extra == 0 ? "" : ", " + std::to_string(std::uint64_t{operand.extra} * 16);
    return "memory(" + varying(space - 1) + ", " + varying(operand.value - (space << kSpaceBits)) + each + half + ")";
  }

  const DevicePlan& plan_;
  const EmitRequest& request_;
  const DeviceRecords records_;
  int workers_ = 32;
  int cluster_ = 1;
  std::vector<Counts> counts_;  // by thread block
  std::vector<Alike> alike_;
  // Of the thread block, and the stretch, that is being written.
  std::size_t block_ = 0;
  Turn turn_;
  std::map<std::uint32_t, std::uint64_t> done_;  // uses of a slot so far
  std::optional<Position> said_;
  std::size_t statements_ = 0;  // of the thread block so far
};

}  // namespace

PlanSource emit(const DevicePlan& plan, const EmitRequest& request, const std::string& space) {
  return Emitter(plan, request).make(space);
}

}  // namespace tutti::executor
