// Which kernel runs a call: protocol, number of blocks and threads. Depends only on what all ranks know equally, so
// that all choose alike: alignment, being in place and the like are no part of it.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/call.h"
#include "tutti/types.h"

namespace tutti::cuda {

enum class Protocol { kLL, kLL128, kBulk };
// How the data moves: an exchange without or with arithmetic, or a two-shot all-reduce.
enum class Pattern { kCopy, kReduce, kTwoShot };

inline constexpr std::size_t kKB = 1024;

struct Choice {
  Protocol protocol = Protocol::kLL;
  bool two_shot = false;
  int blocks = 1;
  int threads = 128;  // workers; the control warp comes on top
  std::size_t piece_bytes = 0;
};

// What the choice may look at.
struct CudaShape {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kByte;
  int size = 1;
  std::size_t bytes = 0;  // of the largest part that goes from one rank to another; of an all-reduce its whole input
  int most_blocks = 1;    // of a kernel
  bool ll128 = false;     // all pairs have passed the probe for it
};

// "ll_one_shot@4x256", "bulk_two_shot@64x512x16384": a forced choice. Blocks, threads and the bytes of a piece may be
// left out, or 0, to be chosen.
struct ForcedChoice {
  Protocol protocol = Protocol::kLL;
  bool two_shot = false;
  int blocks = 0;
  int threads = 0;
  std::size_t piece_bytes = 0;
  bool copy_engine = false;  // "copy_engine": only on memory that all ranks map; elsewhere nothing is forced
};
// Empty text: nothing forced. Throws Error(kInvalidArgument) naming what there is.
std::optional<ForcedChoice> parse_forced(std::string_view text);
std::vector<std::string> algorithm_names();
// Of kernels for a collective: what a tuning table can choose. None for a barrier.
std::vector<std::string> kernel_names(Collective collective);

// Null if `choice` can run the shape, else why not.
const char* refusal(const CudaShape& shape, Protocol protocol, bool two_shot);

// Whether choose() takes the forced choice.
bool takes_forced(const CudaShape& shape, const std::optional<ForcedChoice>& forced);

// The forced choice where it can run the shape, else the table's.
Choice choose(const CudaShape& shape, const std::optional<ForcedChoice>& forced);

// Whether a call on memory that all ranks map runs on copy engines. `between_gpus`: each rank has a GPU of its own, and
// peer memory lies on it.
bool choose_copy_engine(const Call& call, int size, bool between_gpus, const std::optional<ForcedChoice>& forced);

// "ll_one_shot"; lives for ever.
std::string_view name_of(const Choice& choice) noexcept;
// "ll_one_shot@4x256".
std::string to_string(const Choice& choice);

}  // namespace tutti::cuda
