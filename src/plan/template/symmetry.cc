// Digits of ranks.
#include "plan/template/symmetry.h"

#include <algorithm>
#include <string>
#include <utility>

#include "plan/json_document.h"
#include "plan/limits.h"

namespace tutti::plan {

Symmetry::Symmetry(std::vector<std::int32_t> dims, std::array<std::int32_t, 2> blocks)
    : dims_(std::move(dims)), blocks_(blocks) {
  std::array<bool, 2> found{blocks[0] == 1, blocks[1] == 1};
  for (const std::int32_t dim : dims_) {
    if (dim < 1 || dim > static_cast<std::int32_t>(kMaxRanks) / ranks_) {
      throw_at("/template/dims", "they multiply to the number of ranks, from 1 to " + std::to_string(kMaxRanks));
    }
    ranks_ *= dim;
    for (const int buffer : {0, 1}) found[buffer] = found[buffer] || blocks[buffer] == ranks_;
  }
  if (!found[0] || !found[1])
    throw_at("/template", "input_blocks and output_blocks are 1 or a product of the first dims");
}

std::int32_t Symmetry::moved(std::int32_t rank, std::int32_t by) const {
  std::int32_t out = 0;
  std::int32_t weight = 1;
  for (const std::int32_t dim : dims_) {
    out += (rank % dim + by % dim) % dim * weight;
    weight *= dim;
    rank /= dim;
    by /= dim;
  }
  return out;
}

std::optional<std::int32_t> Symmetry::moved_chunks(int buffer, std::int32_t index, std::int32_t size,
                                                   std::int32_t chunks, std::int32_t by) const {
  const std::int32_t blocks = blocks_[buffer];
  if (blocks == 1) return index;
  if (chunks <= 0 || chunks % blocks != 0) return std::nullopt;  // an empty buffer has no chunk to move
  const std::int32_t length = chunks / blocks;
  const std::int32_t first = index / length;
  const std::int32_t last = (index + size - 1) / length;
  // Blocks are numbered by the low digits, so moving them is moving ranks, as far as these digits go.
  const auto at = [&](std::int32_t block) { return moved(block, by % blocks) % blocks; };
  if (first == last) return at(first) * length + index % length;
  if (index % length != 0 || size % length != 0) return std::nullopt;
  std::int32_t least = blocks;
  std::int32_t most = 0;
  for (std::int32_t block = first; block <= last; ++block) {
    least = std::min(least, at(block));
    most = std::max(most, at(block));
  }
  if (most - least != last - first) return std::nullopt;
  return least * length;
}

}  // namespace tutti::plan
