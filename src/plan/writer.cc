// One rank at a time: a plan as JSON values would take many times the memory of its text.
#include "plan/writer.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "plan/mscclpp_limits.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

using Out = nlohmann::ordered_json;

class Writer {
 public:
  // `extended`: with the keys that MSCCL++ does not know.
  Writer(const Plan& plan, bool extended, const Symmetry* symmetry = nullptr)
      : plan_(plan), extended_(extended), symmetry_(symmetry) {}

  std::string write(int indent) const {
    const std::string frame = frame_of().dump(indent);
    // The header has no other array, so its only "[]" is where the ranks belong.
    const std::size_t at = frame.find("\"gpus\":");
    const std::size_t open = frame.find("[]", at);
    std::string text = frame.substr(0, open + 1);
    for (std::size_t rank = 0; rank < plan_.ranks.size(); ++rank) {
      if (rank > 0) text += ',';
      if (indent >= 0) text += '\n';
      text += indented(rank_of(rank).dump(indent), indent);
    }
    if (indent >= 0) text += '\n' + std::string(static_cast<std::size_t>(indent), ' ');
    return text + frame.substr(open + 1);
  }

 private:
  static std::string indented(const std::string& text, int indent) {
    if (indent < 0) return text;
    const std::string margin(2 * static_cast<std::size_t>(indent), ' ');
    std::string out = margin;
    for (const char c : text) {
      out += c;
      if (c == '\n') out += margin;
    }
    return out;
  }

  // The top-level object without its ranks.
  Out frame_of() const {
    Out out = Out::object();
    if (extended_) out["version"] = plan_.version;
    out["name"] = plan_.name;
    out["collective"] = plan_.collective_name;
    out["protocol"] = to_string(plan_.protocol);
    out["inplace"] = plan_.in_place;
    out["reuse_resources"] = plan_.reuse_resources;
    out["gpus"] = Out::array();
    if (symmetry_ != nullptr) {
      out["template"] = {{"dims", symmetry_->dims()},
                         {"input_blocks", symmetry_->blocks()[0]},
                         {"output_blocks", symmetry_->blocks()[1]}};
    }
    out["num_threads_per_block"] = plan_.threads_per_block;
    out["use_double_scratch_buffer"] = plan_.double_scratch;
    out["buffer_alignment"] = plan_.buffer_alignment;
    out["min_message_size"] = plan_.min_message_bytes;
    out["max_message_size"] = plan_.max_message_bytes;
    if (extended_ && plan_.writes_input) out["writes_input"] = true;
    if (extended_ && plan_.root != 0) out["root"] = plan_.root;
    if (extended_ && !plan_.source.empty()) out["source"] = plan_.source;
    return out;
  }

  Out rank_of(std::size_t id) const {
    const Rank& rank = plan_.ranks[id];
    Out out = Out::object();
    out["id"] = id;
    out["input_chunks"] = rank.chunks_of(BufferKind::kInput);
    out["output_chunks"] = rank.chunks_of(BufferKind::kOutput);
    out["scratch_chunks"] = rank.chunks_of(BufferKind::kScratch);
    out["threadblocks"] = Out::array();
    for (std::size_t i = 0; i < rank.blocks.size(); ++i) out["threadblocks"].push_back(block_of(rank.blocks[i], i));
    out["channels"] = channels_of(rank);
    out["remote_buffers"] = remote_buffers_of(rank);
    out["semaphores"] = Out::array();
    for (const std::int32_t initial : rank.semaphores) out["semaphores"].push_back({{"init_value", initial}});
    return out;
  }

  static Out channels_of(const Rank& rank) {
    Out list = Out::array();
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      if (rank.channels_of(kind).empty()) continue;
      list.push_back({{"channel_type", to_string(kind)}, {"connected_to", rank.channels_of(kind)}});
    }
    for (const SwitchChannel& channel : rank.switch_channels) {
      const Out group = {{"size", channel.ranks.size()}, {"ranks", channel.ranks}};
      list.push_back({{"channel_type", to_string(ChannelKind::kSwitch)},
                      {"buffer_type", to_string(channel.buffer)},
                      {"rank_groups", Out::array({group})}});
    }
    return list;
  }

  static Out remote_buffers_of(const Rank& rank) {
    Out list = Out::array();
    for (const RemoteBuffer& remote : rank.remote_buffers) {
      Out access = Out::array();
      if (remote.by_memory) access.push_back(to_string(ChannelKind::kMemory));
      if (remote.by_port) access.push_back(to_string(ChannelKind::kPort));
      list.push_back(
          {{"rank", remote.rank}, {"type", to_string(remote.buffer)}, {"access_channel_types", std::move(access)}});
    }
    return list;
  }

  static Out table_of(const std::array<std::vector<std::int32_t>, kChannelKindCount>& table, const char* kind_key,
                      const char* ids_key) {
    Out list = Out::array();
    for (int kind = 0; kind < kChannelKindCount; ++kind) {
      if (table[kind].empty()) continue;
      list.push_back({{kind_key, to_string(static_cast<ChannelKind>(kind))}, {ids_key, table[kind]}});
    }
    return list;
  }

  Out block_of(const ThreadBlock& block, std::size_t id) const {
    Out out = Out::object();
    out["id"] = id;
    out["ops"] = Out::array();
    for (const Operation& op : block.operations) out["ops"].push_back(operation_of(op));
    out["channels"] = table_of(block.channels, "channel_type", "channel_ids");
    out["remote_buffer_refs"] = table_of(block.remote_buffers, "access_channel_type", "remote_buffer_ids");
    return out;
  }

  static Out operands_of(const std::vector<Operand>& operands) {
    Out list = Out::array();
    for (const Operand& operand : operands) {
      Out out = Out::object();
      if (operand.place == Operand::Place::kLocal) {
        out["type"] = to_string(operand.buffer);
      } else {
        out[operand.place == Operand::Place::kRemote ? "buffer_id" : "switch_channel_id"] = operand.id;
      }
      out["index"] = operand.index;
      out["size"] = operand.size;
      list.push_back(std::move(out));
    }
    return list;
  }

  Out operation_of(const Operation& op) const {
    Out out = Out::object();
    out["name"] = to_string(op.kind);
    if (!op.sources.empty()) out["src_buff"] = operands_of(op.sources);
    if (!op.destinations.empty()) out["dst_buff"] = operands_of(op.destinations);
    if (!op.channel_ids.empty()) out["channel_ids"] = op.channel_ids;
    if (op.channel != ChannelKind::kNone) out["channel_type"] = to_string(op.channel);
    if (reduces(op.kind)) {
      out["reduce_op"] = to_string(extended_ || op.reduce != ReduceKind::kAny ? op.reduce : ReduceKind::kSum);
    }
    if (op.kind == OpKind::kBarrier) {
      out["barrier_id"] = op.barrier_id;
      out["num_threadblocks"] = op.barrier_blocks;
    }
    if (!op.semaphore_ids.empty()) out["semaphore_ids"] = op.semaphore_ids;
    if (op.part) out["tbg_info"] = {{"tb_id", op.part->index}, {"tbg_size", op.part->size}};
    if (op.kind == OpKind::kPipeline) {
      out["iter_context"] = {{"unit_size", op.iteration.unit_bytes}, {"num_chunks", op.iteration.chunks}};
      out["ops"] = Out::array();
      for (const Operation& inner : op.body) out["ops"].push_back(operation_of(inner));
    }
    if (extended_ && op.fence) out["fence"] = true;
    if (extended_ && !op.origin.empty()) out["origin"] = op.origin;
    return out;
  }

  const Plan& plan_;
  bool extended_;
  const Symmetry* symmetry_;
};

}  // namespace

std::string write_plan(const Plan& plan, int indent) { return Writer(plan, true).write(indent); }

std::string write_template(const Template& folded, int indent) {
  return Writer(folded.plan, true, &folded.symmetry).write(indent);
}

std::string export_mscclpp(const Plan& plan, int indent) {
  check_mscclpp_limits(plan);
  return Writer(plan, false).write(indent);
}

}  // namespace tutti::plan
