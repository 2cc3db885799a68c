// Operations from JSON, checked against the table of operations.
#include <set>
#include <string>

#include "base/utf8.h"
#include "plan/limits.h"
#include "plan/operations.h"
#include "plan/rank_reader.h"

namespace tutti::plan {
namespace {

std::string quoted(std::string_view text) {
  std::string out(1, '"');
  out.append(text);
  out.push_back('"');
  return out;
}

Operand read_operand(const Cursor& from, std::int32_t rank) {
  from.allow_only({"rank", "type", "buffer_id", "switch_channel_id", "index", "size"});
  const int places = from.has("type") + from.has("buffer_id") + from.has("switch_channel_id");
  if (places != 1) from.fail("exactly one of \"type\", \"buffer_id\" and \"switch_channel_id\" is expected");
  Operand operand;
  if (from.has("type")) {
    const Cursor type = from.at("type");
    const auto buffer = buffer_of(type.text(kMaxNameBytes));
    if (!buffer) type.fail("\"i\", \"o\" or \"s\" is expected");
    operand.buffer = *buffer;
  } else {
    const bool remote = from.has("buffer_id");
    operand.place = remote ? Operand::Place::kRemote : Operand::Place::kGroup;
    operand.id = static_cast<std::int32_t>(from.at(remote ? "buffer_id" : "switch_channel_id").integer(0, INT32_MAX));
  }
  if (from.has("rank") && from.at("rank").integer(0, INT32_MAX) != rank) {
    from.at("rank").fail("a local operand belongs to rank " + std::to_string(rank));
  }
  operand.index = static_cast<std::int32_t>(from.at("index").integer(0, kMaxChunks));
  operand.size = static_cast<std::int32_t>(from.at("size").integer(1, kMaxChunks));
  return operand;
}

std::vector<Operand> read_operands(const Cursor& op, std::string_view key, std::int32_t rank) {
  std::vector<Operand> operands;
  if (!op.has(key)) return operands;
  const Cursor list = op.at(key);
  const std::size_t count = list.array_size(kMaxOperands);
  operands.reserve(count);
  for (std::size_t i = 0; i < count; ++i) operands.push_back(read_operand(list.at(i), rank));
  return operands;
}

std::string_view place_name(Operand::Place place) {
  switch (place) {
    case Operand::Place::kLocal:
      return "a local operand (\"type\")";
    case Operand::Place::kRemote:
      return "a remote operand (\"buffer_id\")";
    case Operand::Place::kGroup:
      return "an operand of a group (\"switch_channel_id\")";
  }
  return "";
}

// The multicast forms that MSCCL++'s language writes without operand lists.
void read_group_form(const Cursor& from, std::int32_t rank, Operation& op) {
  if (op.channel_ids.size() != 1) from.fail("one channel is expected");
  Operand group;
  group.place = Operand::Place::kGroup;
  group.id = op.channel_ids[0];
  group.index = static_cast<std::int32_t>(from.at("buffer_offset").integer(0, kMaxChunks));
  group.size = static_cast<std::int32_t>(from.at("size").integer(1, kMaxChunks));
  const Cursor type = from.at("buffer_type");
  if (!buffer_of(type.text(kMaxNameBytes))) type.fail("\"i\", \"o\" or \"s\" is expected");
  op.sources.push_back(group);
  op.destinations.push_back(read_operand(from.at("dst_chunk"), rank));
  op.channel_ids.clear();
}

void check_side(const Cursor& from, std::string_view key, const std::vector<Operand>& operands,
                const OperandRules& rules, const Operation& op, bool source) {
  const std::size_t singles = (rules.first.format != Format::kNone) + (rules.second.format != Format::kNone);
  const bool repeats = rules.rest.format != Format::kNone;
  const std::size_t least = singles + (repeats ? 1 : 0);
  if (operands.size() < least || (!repeats && operands.size() > least)) {
    from.fail(quoted(rules_of(op.kind).name) + " takes " + (repeats ? "at least " : "exactly ") +
              std::to_string(least) + " in " + quoted(key) + ", not " + std::to_string(operands.size()));
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const OperandRule rule = source ? source_rule(op, i) : destination_rule(op, i);
    const Cursor list = from.at(key);
    if (operands[i].place != rule.place) list.at(i).fail(std::string(place_name(rule.place)) + " is expected here");
    if (rule.format == Format::kPackets && rule.place == Operand::Place::kLocal &&
        operands[i].buffer != BufferKind::kScratch) {
      list.at(i).fail("packets live in scratch (\"s\") only");
    }
  }
}

void check_ids(const Cursor& from, const Operation& op) {
  const OperationRules& rules = rules_of(op.kind);
  const bool counts = rules.sync == SyncKind::kSignal || rules.sync == SyncKind::kWait ||
                      rules.sync == SyncKind::kRelaxedSignal || rules.sync == SyncKind::kRelaxedWait ||
                      rules.sync == SyncKind::kFlush;
  if (counts && op.channel_ids.empty()) from.fail("\"channel_ids\" is missing or empty");
  if (counts) {
    const std::set<std::int32_t> distinct(op.channel_ids.begin(), op.channel_ids.end());
    if (distinct.size() != op.channel_ids.size()) from.at("channel_ids").fail("a channel is named twice");
  }
  if (op.channel == ChannelKind::kPort && moves_data(op.kind) && op.channel_ids.size() != op.destinations.size()) {
    from.fail("through ports every destination needs a channel in \"channel_ids\"");
  }
  const bool semaphore = rules.sync == SyncKind::kSemaphoreAcquire || rules.sync == SyncKind::kSemaphoreRelease;
  if (semaphore == op.semaphore_ids.empty()) {
    from.fail(semaphore ? "\"semaphore_ids\" is missing or empty" : "\"semaphore_ids\" has no meaning here");
  }
  const std::set<std::int32_t> semaphores(op.semaphore_ids.begin(), op.semaphore_ids.end());
  if (semaphores.size() != op.semaphore_ids.size()) from.at("semaphore_ids").fail("a semaphore is named twice");
}

// An operation moves its operands' common length, but never one chunk count onto another: in chunks they must agree.
void check_lengths(const Cursor& from, const Operation& op) {
  const OperationRules& rules = rules_of(op.kind);
  if (rules.pairwise && op.sources.size() != op.destinations.size()) {
    from.fail("as many sources as destinations are expected");
  }
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    const std::int32_t size = rules.pairwise ? op.sources[i].size : op.sources[0].size;
    if (op.destinations[i].size != size) {
      from.at("dst_buff").at(i).at("size").fail("differs from the source's size " + std::to_string(size));
    }
  }
  for (std::size_t i = 1; !rules.pairwise && i < op.sources.size(); ++i) {
    if (op.sources[i].size != op.sources[0].size) {
      from.at("src_buff").at(i).at("size").fail("differs from the first source's size");
    }
  }
}

void read_channel(const Cursor& from, Operation& op) {
  const OperationRules& rules = rules_of(op.kind);
  if (from.has("channel_type")) {
    const Cursor type = from.at("channel_type");
    const auto channel = channel_of(type.text(kMaxNameBytes));
    if (!channel) type.fail("\"memory\", \"port\", \"switch\" or \"none\" is expected");
    op.channel = *channel;
  }
  if ((rules.channels & channel_bit(op.channel)) == 0) {
    from.fail(quoted(rules.name) + " does not work with channel_type " + quoted(to_string(op.channel)));
  }
  if (from.has("channel_ids")) op.channel_ids = read_ids(from.at("channel_ids"), kMaxChannels, INT32_MAX);
}

void read_barrier(const Cursor& from, Operation& op) {
  if (op.kind != OpKind::kBarrier) {
    if (from.has("barrier_id") || from.has("num_threadblocks")) from.fail("only a barrier has \"barrier_id\"");
    return;
  }
  op.barrier_id = static_cast<std::int32_t>(from.at("barrier_id").integer(0, INT32_MAX));
  op.barrier_blocks = static_cast<std::int32_t>(from.at("num_threadblocks").integer(1, kMaxBlocks));
}

void read_part(const Cursor& from, Operation& op) {
  if (!from.has("tbg_info")) return;
  const Cursor info = from.at("tbg_info");
  const OperationRules& rules = rules_of(op.kind);
  // Through ports only what awaits its packets can be shared: each block knows its own part to be there.
  const bool by_port = op.channel == ChannelKind::kPort && op.kind != OpKind::kReadPutPackets;
  if (!moves_data(op.kind) || !rules.may_split || by_port) {
    info.fail("this operation cannot be shared by a group of thread blocks");
  }
  info.allow_only({"tb_id", "tbg_size"});
  GroupPart part;
  part.size = static_cast<std::int32_t>(info.at("tbg_size").integer(1, kMaxBlocks));
  part.index = static_cast<std::int32_t>(info.at("tb_id").integer(0, part.size - 1));
  op.part = part;
}

void read_pipeline(const Cursor& from, std::int32_t rank, Operation& op) {
  if (op.kind != OpKind::kPipeline) {
    if (from.has("iter_context") || from.has("ops")) from.fail("only a pipeline has \"iter_context\" and \"ops\"");
    return;
  }
  const Cursor context = from.at("iter_context");
  context.allow_only({"unit_size", "num_chunks"});
  op.iteration.unit_bytes = context.at("unit_size").integer(16, kMaxUnitBytes);
  if (op.iteration.unit_bytes % 16 != 0) context.at("unit_size").fail("a multiple of 16 is expected");
  op.iteration.chunks = static_cast<std::int32_t>(context.at("num_chunks").integer(1, kMaxChunks));
  const Cursor body = from.at("ops");
  const std::size_t count = body.array_size(kMaxOperations);
  op.body.reserve(count);
  for (std::size_t i = 0; i < count; ++i) op.body.push_back(read_operation(body.at(i), rank, true));
}

}  // namespace

Operation read_operation(const Cursor& from, std::int32_t rank, bool in_pipeline) {
  from.allow_only({"name", "src_buff", "dst_buff", "channel_ids", "channel_type", "reduce_op", "tbg_info", "barrier_id",
                   "num_threadblocks", "semaphore_ids", "iter_context", "ops", "origin", "fence", "buffer_type",
                   "buffer_offset", "size", "dst_chunk"});
  Operation op;
  const Cursor name = from.at("name");
  const std::string given = name.text(kMaxNameBytes);
  const auto kind = op_kind_of(given);
  if (!kind) name.fail("unknown operation \"" + in_a_line(first_of(given, 60)) + '"');
  op.kind = *kind;
  read_channel(from, op);
  const bool group_form = op.kind == OpKind::kGroupLoadReduce && from.has("buffer_offset");
  if (group_form) {
    read_group_form(from, rank, op);
  } else {
    op.sources = read_operands(from, "src_buff", rank);
    op.destinations = read_operands(from, "dst_buff", rank);
    check_side(from, "src_buff", op.sources, rules_of(op.kind).sources, op, true);
    check_side(from, "dst_buff", op.destinations, rules_of(op.kind).destinations, op, false);
  }
  if (from.has("semaphore_ids")) op.semaphore_ids = read_ids(from.at("semaphore_ids"), kMaxSemaphores, INT32_MAX);
  check_ids(from, op);
  if (!group_form) check_lengths(from, op);
  read_barrier(from, op);
  read_part(from, op);
  if (in_pipeline && op.kind == OpKind::kPipeline) from.fail("a pipeline cannot hold a pipeline");
  if (in_pipeline && uses_packets(op)) from.fail("operations on packets cannot be repeated in a pipeline");
  read_pipeline(from, rank, op);
  if (from.has("reduce_op")) {
    const Cursor reduce = from.at("reduce_op");
    const auto found = reduce_of(reduce.text(kMaxNameBytes));
    if (!found) reduce.fail("unknown reduction");
    if (reduces(op.kind)) op.reduce = *found;
  }
  if (from.has("fence")) {
    op.fence = from.at("fence").boolean();
    if (op.fence && (!uses_packets(op) || op.channel == ChannelKind::kPort)) {
      from.at("fence").fail("only operations on packets through memory can order plain data");
    }
  }
  if (from.has("origin")) op.origin = from.at("origin").text(kMaxNameBytes);
  return op;
}

}  // namespace tutti::plan
