// What the kernels of quantized.cuh are told: a value made by the host for each call.
//
// The message is cut into tiles of 512 elements, 16 for each lane of a warp, and tiles between ranks and blocks as a
// whole. On the wire a tile is 32 vectors of 16 codes, then the fp32 scales of its blocks, four a vector.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tutti/device/memory.cuh"

namespace tutti::cuda {

inline constexpr std::size_t kLaneElements = 16;
inline constexpr std::size_t kTileElements = 32 * kLaneElements;

// How the data move.
enum class QuantizedPattern { kLL, kLLTwoShot, kBulk };
inline constexpr int kQuantizedPatterns = 3;

struct QuantizedArgs {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;        // elements
  std::size_t tiles = 0;        // the last one may be short
  std::size_t chunk_tiles = 0;  // of each rank's chunk; in one shot all
  std::size_t block_tiles = 0;  // of every chunk, what one thread block handles
  std::size_t piece_tiles = 1;  // bulk: of that, what it moves at a time
  int scaled_lanes = 8;         // lanes that share a scale: the elements of a block / 16
  int scale_vectors = 1;        // of a tile
  int int8 = 0;                 // else fp8
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
};

// Vectors of a tile on the wire.
TUTTI_DEVICE constexpr int tile_vectors(int scale_vectors) { return 32 + scale_vectors; }

}  // namespace tutti::cuda
