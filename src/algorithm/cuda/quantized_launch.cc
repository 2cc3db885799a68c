#include "algorithm/cuda/quantized_launch.h"

#include <algorithm>

#include "base/rounding.h"
#include "channel/cuda/scratch_layout.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// Tiles between ranks, then between blocks: few tiles a block while the message is small.
void cut_tiles(QuantizedLaunch& launch, int size, int most_blocks) {
  QuantizedArgs& args = launch.args;
  const std::size_t chunks = launch.pattern == QuantizedPattern::kLL ? 1 : static_cast<std::size_t>(size);
  args.chunk_tiles = std::max<std::size_t>(1, ceil_div(args.tiles, chunks));
  const std::size_t wanted = ceil_div(args.chunk_tiles, launch.pattern == QuantizedPattern::kBulk ? 32 : 4);
  const auto most = static_cast<std::size_t>(std::min(most_blocks, kMaxBlocks));
  args.block_tiles = ceil_div(args.chunk_tiles, std::min(wanted, most));
  launch.blocks = static_cast<int>(ceil_div(args.chunk_tiles, args.block_tiles));
  launch.threads = static_cast<int>(std::min<std::size_t>(args.block_tiles, 16)) * 32;
  const auto tile_bytes = static_cast<std::size_t>(16 * tile_vectors(args.scale_vectors));
  // Several pieces of a large part, so that the trips of one overlap the other's.
  args.piece_tiles = std::clamp<std::size_t>(ceil_div(args.block_tiles, 8), 16, kBulkPieceBytes / tile_bytes);
}

bool fits(const QuantizedLaunch& launch) {
  return launch.pattern == QuantizedPattern::kBulk ||
         launch.args.block_tiles * static_cast<std::size_t>(tile_vectors(launch.args.scale_vectors)) <= kLLItems;
}

QuantizedPattern pattern_of(const ForcedChoice& forced) {
  if (forced.protocol != Protocol::kLL) return QuantizedPattern::kBulk;
  return forced.two_shot ? QuantizedPattern::kLLTwoShot : QuantizedPattern::kLL;
}

[[noreturn]] void refuse(const std::string& why) {
  throw_error(ErrorKind::kInvalidArgument, "all_reduce_quantized: " + why);
}

}  // namespace

void check_quantized(const QuantizedAllReduce& call) {
  if (call.dtype != DataType::kBfloat16 && call.dtype != DataType::kFloat16 && call.dtype != DataType::kFloat32) {
    refuse("the dtype must be bf16, fp16 or fp32");
  }
  if (call.code != DataType::kFloat8E4M3fn && call.code != DataType::kInt8)
    refuse("the codes are fp8 (e4m3fn) or int8");
  if (call.block != 32 && call.block != 64 && call.block != 128 && call.block != 256 && call.block != 512) {
    refuse("a block has 32, 64, 128, 256 or 512 elements, not " + std::to_string(call.block));
  }
  if (call.count > 0 && (call.input == nullptr || call.output == nullptr)) refuse("input and output must not be null");
  const auto* in = static_cast<const std::byte*>(call.input);
  const auto* out = static_cast<const std::byte*>(call.output);
  const std::size_t bytes = call.count * size_of(call.dtype);
  if (in != out && in < out + bytes && out < in + bytes) refuse("input and output overlap, and are not the same");
}

QuantizedLaunch make_quantized_launch(const QuantizedAllReduce& call, int size, int most_blocks,
                                      const std::optional<ForcedChoice>& forced) {
  QuantizedLaunch launch;
  QuantizedArgs& args = launch.args;
  args.input = static_cast<const std::byte*>(call.input);
  args.output = static_cast<std::byte*>(call.output);
  args.count = call.count;
  args.tiles = ceil_div(call.count, kTileElements);
  args.scaled_lanes = call.block / static_cast<int>(kLaneElements);
  args.scale_vectors = std::max(1, 32 / args.scaled_lanes / 4);
  args.int8 = call.code == DataType::kInt8 ? 1 : 0;
  const auto takes = [&](QuantizedPattern pattern) {
    launch.pattern = pattern;
    cut_tiles(launch, size, most_blocks);
    return fits(launch);
  };
  if (forced && !forced->copy_engine && takes(pattern_of(*forced))) return launch;
  const std::size_t bytes = call.count * size_of(call.dtype);
  // One shot has one rounding to codes less, too.
  if (bytes <= (size <= 2 ? 256 * kKB : 128 * kKB) && takes(QuantizedPattern::kLL)) return launch;
  if (bytes <= 1024 * kKB && takes(QuantizedPattern::kLLTwoShot)) return launch;
  takes(QuantizedPattern::kBulk);
  return launch;
}

Choice choice_of(const QuantizedLaunch& launch) noexcept {
  const Protocol protocol = launch.pattern == QuantizedPattern::kBulk ? Protocol::kBulk : Protocol::kLL;
  return {protocol, launch.pattern != QuantizedPattern::kLL, launch.blocks, launch.threads, 0};
}

std::string to_string(const QuantizedLaunch& launch) { return to_string(choice_of(launch)); }

}  // namespace tutti::cuda
