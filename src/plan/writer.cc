// Plans as JSON text.
#include "plan/writer.h"

#include <utility>

#include "base/json_writer.h"
#include "plan/mscclpp_limits.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

class Writer {
 public:
  // `extended`: with the keys that MSCCL++ does not know.
  Writer(const Plan& plan, bool extended, int indent, const Symmetry* symmetry = nullptr)
      : plan_(plan), extended_(extended), symmetry_(symmetry), out_(indent) {}

  std::string write() && {
    out_.begin_object();
    if (extended_) out_.member("version", plan_.version);
    out_.member("name", plan_.name);
    out_.member("collective", plan_.collective_name);
    out_.member("protocol", to_string(plan_.protocol));
    out_.member("inplace", plan_.in_place);
    out_.member("reuse_resources", plan_.reuse_resources);
    out_.key("gpus").begin_array();
    for (std::size_t id = 0; id < plan_.ranks.size(); ++id) write_rank(id);
    out_.end_array();
    if (symmetry_ != nullptr) {
      out_.key("template").begin_object().member("dims", symmetry_->dims());
      out_.member("input_blocks", symmetry_->blocks()[0]).member("output_blocks", symmetry_->blocks()[1]).end_object();
    }
    out_.member("num_threads_per_block", plan_.threads_per_block);
    out_.member("use_double_scratch_buffer", plan_.double_scratch);
    out_.member("buffer_alignment", plan_.buffer_alignment);
    out_.member("min_message_size", plan_.min_message_bytes);
    out_.member("max_message_size", plan_.max_message_bytes);
    if (extended_ && plan_.writes_input) out_.member("writes_input", true);
    if (extended_ && plan_.root != 0) out_.member("root", plan_.root);
    if (extended_ && !plan_.source.empty()) out_.member("source", plan_.source);
    out_.end_object();
    return std::move(out_).take();
  }

 private:
  void write_rank(std::size_t id) {
    const Rank& rank = plan_.ranks[id];
    out_.begin_object().member("id", id);
    out_.member("input_chunks", rank.chunks_of(BufferKind::kInput));
    out_.member("output_chunks", rank.chunks_of(BufferKind::kOutput));
    out_.member("scratch_chunks", rank.chunks_of(BufferKind::kScratch));
    out_.key("threadblocks").begin_array();
    for (std::size_t i = 0; i < rank.blocks.size(); ++i) write_block(rank.blocks[i], i);
    out_.end_array();
    write_channels(rank);
    write_remote_buffers(rank);
    out_.key("semaphores").begin_array();
    for (const std::int32_t initial : rank.semaphores) out_.begin_object().member("init_value", initial).end_object();
    out_.end_array().end_object();
  }

  void write_channels(const Rank& rank) {
    out_.key("channels").begin_array();
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      if (rank.channels_of(kind).empty()) continue;
      out_.begin_object().member("channel_type", to_string(kind));
      out_.member("connected_to", rank.channels_of(kind)).end_object();
    }
    for (const SwitchChannel& channel : rank.switch_channels) {
      out_.begin_object().member("channel_type", to_string(ChannelKind::kSwitch));
      out_.member("buffer_type", to_string(channel.buffer)).key("rank_groups").begin_array();
      out_.begin_object().member("size", channel.ranks.size()).member("ranks", channel.ranks).end_object();
      out_.end_array().end_object();
    }
    out_.end_array();
  }

  void write_remote_buffers(const Rank& rank) {
    out_.key("remote_buffers").begin_array();
    for (const RemoteBuffer& remote : rank.remote_buffers) {
      out_.begin_object().member("rank", remote.rank).member("type", to_string(remote.buffer));
      out_.key("access_channel_types").begin_array();
      if (remote.by_memory) out_.value(to_string(ChannelKind::kMemory));
      if (remote.by_port) out_.value(to_string(ChannelKind::kPort));
      out_.end_array().end_object();
    }
    out_.end_array();
  }

  void write_table(const char* name, const std::array<std::vector<std::int32_t>, kChannelKindCount>& table,
                   const char* kind_key, const char* ids_key) {
    out_.key(name).begin_array();
    for (int kind = 0; kind < kChannelKindCount; ++kind) {
      if (table[kind].empty()) continue;
      out_.begin_object().member(kind_key, to_string(static_cast<ChannelKind>(kind)));
      out_.member(ids_key, table[kind]).end_object();
    }
    out_.end_array();
  }

  void write_block(const ThreadBlock& block, std::size_t id) {
    out_.begin_object().member("id", id);
    write_operations(block.operations);
    write_table("channels", block.channels, "channel_type", "channel_ids");
    write_table("remote_buffer_refs", block.remote_buffers, "access_channel_type", "remote_buffer_ids");
    out_.end_object();
  }

  void write_operands(const char* name, const std::vector<Operand>& operands) {
    if (operands.empty()) return;
    out_.key(name).begin_array();
    for (const Operand& operand : operands) {
      out_.begin_object();
      if (operand.place == Operand::Place::kLocal) {
        out_.member("type", to_string(operand.buffer));
      } else {
        out_.member(operand.place == Operand::Place::kRemote ? "buffer_id" : "switch_channel_id", operand.id);
      }
      out_.member("index", operand.index).member("size", operand.size).end_object();
    }
    out_.end_array();
  }

  void write_operations(const std::vector<Operation>& operations) {
    out_.key("ops").begin_array();
    for (const Operation& op : operations) write_operation(op);
    out_.end_array();
  }

  void write_operation(const Operation& op) {
    out_.begin_object().member("name", to_string(op.kind));
    write_operands("src_buff", op.sources);
    write_operands("dst_buff", op.destinations);
    if (!op.channel_ids.empty()) out_.member("channel_ids", op.channel_ids);
    if (op.channel != ChannelKind::kNone) out_.member("channel_type", to_string(op.channel));
    if (reduces(op.kind)) {
      out_.member("reduce_op", to_string(extended_ || op.reduce != ReduceKind::kAny ? op.reduce : ReduceKind::kSum));
    }
    if (op.kind == OpKind::kBarrier) {
      out_.member("barrier_id", op.barrier_id).member("num_threadblocks", op.barrier_blocks);
    }
    if (!op.semaphore_ids.empty()) out_.member("semaphore_ids", op.semaphore_ids);
    if (op.part) {
      out_.key("tbg_info").begin_object().member("tb_id", op.part->index);
      out_.member("tbg_size", op.part->size).end_object();
    }
    if (op.kind == OpKind::kPipeline) {
      out_.key("iter_context").begin_object().member("unit_size", op.iteration.unit_bytes);
      out_.member("num_chunks", op.iteration.chunks).end_object();
      write_operations(op.body);
    }
    if (extended_ && op.fence) out_.member("fence", true);
    if (extended_ && !op.origin.empty()) out_.member("origin", op.origin);
    out_.end_object();
  }

  const Plan& plan_;
  const bool extended_;
  const Symmetry* const symmetry_;
  JsonWriter out_;
};

}  // namespace

std::string write_plan(const Plan& plan, int indent) { return Writer(plan, true, indent).write(); }

std::string write_template(const Template& folded, int indent) {
  return Writer(folded.plan, true, indent, &folded.symmetry).write();
}

std::string export_mscclpp(const Plan& plan, int indent) {
  check_mscclpp_limits(plan);
  return Writer(plan, false, indent).write();
}

}  // namespace tutti::plan
