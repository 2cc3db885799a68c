// One rank of a plan from JSON: buffers, channels, thread blocks.
#include "plan/rank_reader.h"

#include <string>
#include <utility>

#include "plan/limits.h"
#include "plan/operations.h"

namespace tutti::plan {
namespace {

// MSCCL++'s executor takes the place in the list for the id in some places and "id" in others.
void expect_id(const Cursor& entry, std::size_t place) {
  entry.expect_object();
  const Cursor id = entry.at("id");
  if (id.integer(0, INT32_MAX) != static_cast<std::int64_t>(place)) {
    id.fail("differs from the place in the list, " + std::to_string(place));
  }
}

BufferKind read_buffer(const Cursor& from) {
  const auto buffer = buffer_of(from.text(kMaxNameBytes));
  if (!buffer) from.fail("\"i\", \"o\" or \"s\" is expected");
  return *buffer;
}

ChannelKind read_channel_kind(const Cursor& from) {
  const auto kind = channel_of(from.text(kMaxNameBytes));
  if (!kind || *kind == ChannelKind::kNone) from.fail("\"memory\", \"port\" or \"switch\" is expected");
  return *kind;
}

void append(std::vector<std::int32_t>& to, const std::vector<std::int32_t>& ids) {
  to.insert(to.end(), ids.begin(), ids.end());
}

void read_switch(const Cursor& from, Rank& rank) {
  from.allow_only({"channel_type", "buffer_type", "buff", "rank_groups"});
  // "buff" is what plans called it before "buffer_type".
  const BufferKind buffer = read_buffer(from.at(from.has("buff") ? "buff" : "buffer_type"));
  const Cursor groups = from.at("rank_groups");
  const std::size_t count = groups.array_size(kMaxChannels);
  for (std::size_t i = 0; i < count; ++i) {
    const Cursor group = groups.at(i);
    group.allow_only({"size", "ranks"});
    SwitchChannel channel{buffer, read_ids(group.at("ranks"), kMaxRanks, kMaxRanks)};
    if (group.at("size").integer(0, kMaxRanks) != static_cast<std::int64_t>(channel.ranks.size())) {
      group.at("size").fail("the group has " + std::to_string(channel.ranks.size()) + " ranks");
    }
    rank.switch_channels.push_back(std::move(channel));
  }
}

void read_channels(const Cursor& list, Rank& rank) {
  const std::size_t count = list.array_size(kMaxChannels);
  for (std::size_t i = 0; i < count; ++i) {
    const Cursor entry = list.at(i);
    entry.expect_object();
    const ChannelKind kind = read_channel_kind(entry.at("channel_type"));
    if (kind == ChannelKind::kSwitch) {
      read_switch(entry, rank);
      continue;
    }
    entry.allow_only({"channel_type", "connected_to"});
    append(rank.channels[static_cast<int>(kind)], read_ids(entry.at("connected_to"), kMaxChannels, kMaxRanks));
  }
}

void read_remote_buffers(const Cursor& list, Rank& rank) {
  const std::size_t count = list.array_size(kMaxChannels);
  for (std::size_t i = 0; i < count; ++i) {
    const Cursor entry = list.at(i);
    entry.allow_only({"rank", "type", "access_channel_types"});
    RemoteBuffer remote;
    remote.rank = static_cast<std::int32_t>(entry.at("rank").integer(0, kMaxRanks));
    remote.buffer = read_buffer(entry.at("type"));
    const Cursor access = entry.at("access_channel_types");
    for (std::size_t k = 0, kinds = access.array_size(kChannelKindCount); k < kinds; ++k) {
      const ChannelKind kind = read_channel_kind(access.at(k));
      if (kind == ChannelKind::kSwitch) access.at(k).fail("\"memory\" or \"port\" is expected");
      (kind == ChannelKind::kMemory ? remote.by_memory : remote.by_port) = true;
    }
    rank.remote_buffers.push_back(remote);
  }
}

// "channels" and "remote_buffer_refs" of a thread block: lists of {kind, ids}.
void read_table(const Cursor& list, std::string_view kind_key, std::string_view ids_key,
                std::array<std::vector<std::int32_t>, kChannelKindCount>& table) {
  const std::size_t count = list.array_size(kMaxChannels);
  for (std::size_t i = 0; i < count; ++i) {
    const Cursor entry = list.at(i);
    // "buff" stands in older plans and says nothing that the channel does not.
    entry.allow_only({kind_key, ids_key, "buff"});
    const ChannelKind kind = read_channel_kind(entry.at(kind_key));
    append(table[static_cast<int>(kind)], read_ids(entry.at(ids_key), kMaxChannels, kMaxChannels));
  }
}

// Operations that move data through memory name their channels only in some plans of MSCCL++'s. They must be there, and
// nothing follows from them.
template <typename Fail>
void forget_channels(Operation& op, const ThreadBlock& block, const Fail& fail) {
  if (op.channel != ChannelKind::kMemory || !moves_data(op.kind)) return;
  const std::size_t known = block.channels_of(ChannelKind::kMemory).size();
  for (const std::int32_t id : op.channel_ids) {
    if (static_cast<std::size_t>(id) < known) continue;
    fail(std::to_string(id) + " names no memory channel of this thread block; there are " + std::to_string(known));
  }
  op.channel_ids.clear();
}

ThreadBlock read_block(const Cursor& from, std::vector<Operation> operations) {
  from.allow_only({"id", "ops", "channels", "remote_buffer_refs"});
  ThreadBlock block;
  if (from.has("channels")) read_table(from.at("channels"), "channel_type", "channel_ids", block.channels);
  if (from.has("remote_buffer_refs")) {
    read_table(from.at("remote_buffer_refs"), "access_channel_type", "remote_buffer_ids", block.remote_buffers);
  }
  from.at("ops").array_size(0);
  block.operations = std::move(operations);
  for (std::size_t i = 0; i < block.operations.size(); ++i) {
    const auto fail = [&](const std::string& inner, const std::string& what) {
      throw_at(from.path() + "/ops/" + std::to_string(i) + inner + "/channel_ids", what);
    };
    forget_channels(block.operations[i], block, [&](const std::string& what) { fail("", what); });
    auto& body = block.operations[i].body;
    for (std::size_t k = 0; k < body.size(); ++k) {
      forget_channels(body[k], block, [&](const std::string& what) { fail("/ops/" + std::to_string(k), what); });
    }
  }
  return block;
}

void read_blocks(const Cursor& list, std::vector<std::vector<Operation>> operations, Rank& rank) {
  const std::size_t count = list.array_size(kMaxBlocks);
  operations.resize(count);
  rank.blocks.reserve(count);
  for (std::size_t i = 0; i < count; ++i) {
    expect_id(list.at(i), i);
    rank.blocks.push_back(read_block(list.at(i), std::move(operations[i])));
  }
}

}  // namespace

std::vector<std::int32_t> read_ids(const Cursor& list, std::size_t most, std::int64_t largest) {
  std::vector<std::int32_t> ids;
  const std::size_t count = list.array_size(most);
  ids.reserve(count);
  for (std::size_t i = 0; i < count; ++i) ids.push_back(static_cast<std::int32_t>(list.at(i).integer(0, largest)));
  return ids;
}

Rank read_rank(const Cursor& gpu, std::int32_t id, std::vector<std::vector<Operation>> operations) {
  gpu.allow_only({"id", "input_chunks", "output_chunks", "scratch_chunks", "threadblocks", "channels", "remote_buffers",
                  "semaphores"});
  expect_id(gpu, static_cast<std::size_t>(id));
  Rank rank;
  constexpr std::array<std::string_view, kBufferKindCount> kKeys{"input_chunks", "output_chunks", "scratch_chunks"};
  for (std::size_t i = 0; i < kKeys.size(); ++i) {
    rank.chunks[i] = static_cast<std::int32_t>(gpu.at(kKeys[i]).integer(0, kMaxChunks));
  }
  if (gpu.has("channels")) read_channels(gpu.at("channels"), rank);
  if (gpu.has("remote_buffers")) read_remote_buffers(gpu.at("remote_buffers"), rank);
  if (gpu.has("semaphores")) {
    const Cursor list = gpu.at("semaphores");
    for (std::size_t i = 0, count = list.array_size(kMaxSemaphores); i < count; ++i) {
      const Cursor entry = list.at(i);
      entry.allow_only({"init_value"});
      rank.semaphores.push_back(static_cast<std::int32_t>(entry.at("init_value").integer(0, kMaxCredit)));
    }
  }
  read_blocks(gpu.at("threadblocks"), std::move(operations), rank);
  return rank;
}

}  // namespace tutti::plan
