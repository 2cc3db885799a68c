// Chunks to bytes.
#include "plan/sizes.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <string>

#include "base/rounding.h"
#include "plan/operations.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr int index_of(BufferKind buffer) { return static_cast<int>(buffer); }

// Bytes of reused scratch for a chunk; nothing if no rank has scratch.
std::optional<std::int64_t> reused_bytes_a_chunk(const Plan& plan) {
  std::int64_t most = 0;
  for (const Rank& rank : plan.ranks) most = std::max<std::int64_t>(most, rank.chunks_of(BufferKind::kScratch));
  if (most == 0) return std::nullopt;
  return kReusedScratchBytes / (plan.double_scratch ? 2 : 1) / most;
}

// No buffer, scratch or loop of a message may have more bytes, so that no offset or sum of a few of them overflows.
constexpr std::int64_t kMostBytes = std::int64_t{1} << 60;

bool fits(std::int64_t count, std::int64_t bytes) { return count == 0 || bytes <= kMostBytes / count; }

// The most chunks that a pipeline of the plan runs over, or that a rank's scratch has, plain and packets.
std::int64_t most_chunks(const Plan& plan) {
  std::int64_t most = 1;
  for (const Rank& rank : plan.ranks) {
    most = std::max<std::int64_t>(most, 3 * std::int64_t{rank.chunks_of(BufferKind::kScratch)});
    for (const ThreadBlock& block : rank.blocks) {
      for (const Operation& op : block.operations) {
        if (op.kind == OpKind::kPipeline) most = std::max<std::int64_t>(most, op.iteration.chunks);
      }
    }
  }
  return most;
}

}  // namespace

// An operand as the cutter sees it.
struct Sizes::View {
  bool scratch = false;
  std::int64_t scale = 1;         // 2 for packets
  std::int64_t index = 0;         // first chunk
  std::int64_t block_chunks = 1;  // input and output
  std::int64_t block_bytes = 0;
};

std::int64_t bytes_without_ring(const Plan& plan) {
  constexpr std::int64_t kAny = std::numeric_limits<std::int64_t>::max();
  if (!plan.reuse_resources || scratch_use(plan).packets || ring_unit(plan) == 0) return kAny;
  const Shape shape = shape_of(plan);
  std::int64_t fewest = 0;
  for (const std::int32_t chunks : shape.block_chunks) {
    if (chunks > 0) fewest = fewest == 0 ? chunks : std::min<std::int64_t>(fewest, chunks);
  }
  return fewest * (reused_bytes_a_chunk(plan).value_or(0) / kChunkAlignment * kChunkAlignment);
}

Sizes::Sizes(const Plan& plan, std::int64_t input_block_bytes, std::int64_t output_block_bytes)
    : plan_(plan), links_(plan), shape_(shape_of(plan)), use_(scratch_use(plan)) {
  block_bytes_ = {input_block_bytes, output_block_bytes};
  for (std::size_t i = 0; i < block_bytes_.size(); ++i) {
    if (block_bytes_[i] < 0) throw_error(ErrorKind::kInvalidArgument, "plan: a negative size");
    bool small = fits(shape_.blocks[i], block_bytes_[i]);
    if (small && shape_.block_chunks[i] > 0) {
      const std::int64_t chunk = round_up(ceil_div(block_bytes_[i], shape_.block_chunks[i]), kChunkAlignment);
      chunk_bytes_ = std::max(chunk_bytes_, chunk);
      small = fits(most_chunks(plan), chunk);
    }
    if (!small) {
      throw_error(ErrorKind::kUnsupported,
                  "plan \"" + plan.name + "\": a message of " + std::to_string(block_bytes_[i]) +
                      " bytes a rank block is too large: a buffer of it would pass 2^60 bytes");
    }
  }
  scratch_stride_ = chunk_bytes_;
  if (!plan.reuse_resources || use_.packets) return;
  const std::optional<std::int64_t> reused = reused_bytes_a_chunk(plan);
  if (!reused || chunk_bytes_ <= *reused) return;
  const std::int64_t unit = ring_unit(plan);
  scratch_stride_ = unit == 0 ? 0 : *reused / unit * unit;
  if (scratch_stride_ == 0) {
    throw_error(ErrorKind::kUnsupported,
                "plan \"" + plan.name + "\": its reused scratch of " + std::to_string(kReusedScratchBytes) +
                    " bytes has " + std::to_string(*reused) + " for each of its chunks of " +
                    std::to_string(chunk_bytes_) + "; only pipelines of one unit_size wrap in it, a chunk at a time");
  }
  // The proof of such a plan may hold only as long as no ring is needed (bytes_without_ring).
  const std::uint64_t largest = static_cast<std::uint64_t>(std::max(input_block_bytes, output_block_bytes));
  if (largest > plan.max_message_bytes) {
    throw_error(ErrorKind::kUnsupported, "plan \"" + plan.name + "\" is for messages of at most " +
                                             std::to_string(plan.max_message_bytes) + " bytes, not " +
                                             std::to_string(largest));
  }
}

std::int64_t Sizes::scratch_bytes(std::int32_t rank) const {
  const std::int64_t region = plan_.ranks[rank].chunks_of(BufferKind::kScratch) * scratch_stride_;
  return (use_.plain ? region : 0) + (use_.packets ? 2 * region : 0);
}

std::int64_t Sizes::iterations(const IterationContext& context) const {
  return ceil_div(context.chunks * chunk_bytes_, context.unit_bytes);
}

std::int64_t Sizes::part_begin(std::int64_t chunks, std::int64_t index, std::int64_t size) const {
  const std::int64_t whole = index * chunks / size;
  const std::int64_t rest = index * chunks % size;
  return whole * chunk_bytes_ + rest * (chunk_bytes_ / kChunkAlignment) / size * kChunkAlignment;
}

std::vector<Move> Sizes::moves_of(std::int32_t rank, const ThreadBlock& block, const Operation& op) const {
  const GroupPart part = op.part.value_or(GroupPart{});
  return moves_in(rank, block, op, [&](std::int64_t chunks) {
    return Window{part_begin(chunks, part.index, part.size), part_begin(chunks, part.index + 1, part.size), 0};
  });
}

std::vector<Move> Sizes::moves_of(std::int32_t rank, const ThreadBlock& block, const Operation& op,
                                  const IterationContext& context, std::int64_t iteration) const {
  const bool wraps = scratch_stride_ < chunk_bytes_;
  return moves_in(rank, block, op, [&](std::int64_t chunks) {
    const std::int64_t length = chunks * chunk_bytes_;
    const std::int64_t begin = std::min(iteration * context.unit_bytes, length);
    const std::int64_t end = std::min(begin + context.unit_bytes, length);
    return Window{begin, end, wraps ? begin / scratch_stride_ * scratch_stride_ : 0};
  });
}

Sizes::View Sizes::view_of(std::int32_t rank, const ThreadBlock& block, const Operation& op, const Operand& operand,
                           bool packets) const {
  Place place;
  if (operand.place == Operand::Place::kGroup) {
    // What is asked of a place below is the same on all ranks, so this one stands for all members.
    const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[operand.id];
    place = {rank, links_.groups()[links_.group_of(rank, channel)].buffer};
  } else {
    place = place_of(plan_, rank, block, op, operand);
  }
  View view;
  view.index = operand.index;
  view.scratch = place.buffer == BufferKind::kScratch;
  if (view.scratch) {
    view.scale = packets ? 2 : 1;
  } else {
    view.block_chunks = shape_.block_chunks[index_of(place.buffer)];
    view.block_bytes = block_bytes_[index_of(place.buffer)];
  }
  return view;
}

// The end of the piece that begins at `begin` and stays in one rank block of the operand.
std::int64_t Sizes::cut_after(const View& view, std::int64_t begin, std::int64_t end) const {
  if (view.scratch) return end;
  const std::int64_t chunk = view.index + begin / chunk_bytes_;
  const std::int64_t next_block = (chunk / view.block_chunks + 1) * view.block_chunks;
  return std::min(end, (next_block - view.index) * chunk_bytes_);
}

std::vector<Move> Sizes::moves_in(std::int32_t rank, const ThreadBlock& block, const Operation& op,
                                  const std::function<Window(std::int64_t chunks)>& window_of) const {
  if (op.sources.empty()) return {};
  std::vector<View> from;
  std::vector<View> to;
  for (std::size_t i = 0; i < op.sources.size(); ++i) {
    from.push_back(view_of(rank, block, op, op.sources[i], source_rule(op, i).format == Format::kPackets));
  }
  for (std::size_t i = 0; i < op.destinations.size(); ++i) {
    to.push_back(view_of(rank, block, op, op.destinations[i], destination_rule(op, i).format == Format::kPackets));
  }
  std::vector<Move> moves;
  if (!rules_of(op.kind).pairwise) {
    cut(from, to, window_of(op.sources[0].size), 0, moves);
    return moves;
  }
  for (std::size_t i = 0; i < from.size(); ++i) {
    cut({from[i]}, {to[i]}, window_of(op.sources[i].size), static_cast<std::int32_t>(i), moves);
  }
  return moves;
}

void Sizes::cut(const std::vector<View>& from, const std::vector<View>& to, Window window, std::int32_t pair,
                std::vector<Move>& moves) const {
  for (std::int64_t begin = window.begin; begin < window.end;) {
    std::int64_t end = window.end;
    for (const View& view : from) end = cut_after(view, begin, end);
    for (const View& view : to) end = cut_after(view, begin, end);
    Move move;
    move.bytes = end - begin;
    move.pair = pair;
    const auto offset_of = [&](const View& view) {
      if (view.scratch) return view.scale * (view.index * scratch_stride_ + begin - window.shift);
      const std::int64_t chunk = view.index + begin / chunk_bytes_;
      const std::int64_t in_block = chunk % view.block_chunks * chunk_bytes_ + begin % chunk_bytes_;
      move.bytes = std::min(move.bytes, std::max<std::int64_t>(0, view.block_bytes - in_block));
      return chunk / view.block_chunks * view.block_bytes + std::min(in_block, view.block_bytes);
    };
    for (const View& view : from) move.sources.push_back(offset_of(view));
    for (const View& view : to) move.destinations.push_back(offset_of(view));
    if (move.bytes > 0) moves.push_back(std::move(move));
    begin = end;
  }
}

}  // namespace tutti::plan
