// How the ranks of a template differ: by where they stand, not by what they do.
//
// Ranks are numbers of mixed radix, the lowest digit first: dims {N} is a ring, {2, 2, 2} a cube of eight, {8, 512}
// hosts of eight ranks. Moving by a rank adds digit by digit, each modulo its dim: (r + k) mod N with one dim, r xor k
// where all are 2. These moves form a group that takes every rank to every other.
//
// The chunks of input and output move along where the algorithm gives each rank its own part: a buffer is cut into
// `blocks` equal parts, numbered by the low digits of the ranks, and a part moves as these digits do. With one block
// nothing moves. Scratch stays where it is: a rank numbers its scratch as seen from itself.
//
// Thread rule: a value.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

namespace tutti::plan {

class Symmetry {
 public:
  // `blocks` of input and output. Throws InvalidArgument unless every dim is positive, there are at most kMaxRanks
  // ranks, and each of `blocks` is a product of the first dims.
  explicit Symmetry(std::vector<std::int32_t> dims, std::array<std::int32_t, 2> blocks = {1, 1});

  const std::vector<std::int32_t>& dims() const { return dims_; }
  const std::array<std::int32_t, 2>& blocks() const { return blocks_; }
  std::int32_t ranks() const { return ranks_; }

  std::int32_t moved(std::int32_t rank, std::int32_t by) const;

  // Where the chunks `index` to `index` + `size` of input (0) or output (1) go, of `chunks` in all; empty if they would
  // not lie side by side.
  std::optional<std::int32_t> moved_chunks(int buffer, std::int32_t index, std::int32_t size, std::int32_t chunks,
                                           std::int32_t by) const;

  bool operator==(const Symmetry&) const = default;

 private:
  std::vector<std::int32_t> dims_;
  std::array<std::int32_t, 2> blocks_;
  std::int32_t ranks_ = 1;
};

}  // namespace tutti::plan
