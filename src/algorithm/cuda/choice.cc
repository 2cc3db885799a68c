#include "algorithm/cuda/choice.h"

#include <algorithm>
#include <array>

#include "algorithm/cuda/exchange_args.h"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/cuda/peer_copies.h"
#include "base/parse.h"
#include "channel/cuda/scratch_layout.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

constexpr std::size_t kMB = 1024 * kKB;
constexpr std::size_t kLLBlockBytes = kLLItems * 16;
constexpr std::size_t kLL128BlockBytes = kLL128Lines * 120;

struct Named {
  std::string_view name;
  Protocol protocol;
  bool two_shot;
};
constexpr std::array<Named, 6> kNamed{{{"ll_one_shot", Protocol::kLL, false},
                                       {"ll128_one_shot", Protocol::kLL128, false},
                                       {"bulk_one_shot", Protocol::kBulk, false},
                                       {"ll_two_shot", Protocol::kLL, true},
                                       {"ll128_two_shot", Protocol::kLL128, true},
                                       {"bulk_two_shot", Protocol::kBulk, true}}};

constexpr std::string_view kCopyEngineName = "copy_engine";
// From here on copy engines are faster than multiprocessors (two and four H200, docs/performance.md). What the first
// half of an all-reduce takes is the same in both.
constexpr std::size_t kLeastCopyEngine = 64 * kMB, kLeastCopyEngineAllReduce = 128 * kMB;

// What one pair exchanges in one phase.
std::size_t part_bytes(const CudaShape& shape, bool two_shot) {
  return two_shot ? part_size(shape.bytes, shape.size) : shape.bytes;
}

// Most bytes of a part that the slots of all blocks hold.
std::size_t capacity(Protocol protocol, int blocks) {
  const auto n = static_cast<std::size_t>(blocks);
  switch (protocol) {
    case Protocol::kLL:
      return n * kLLBlockBytes;
    case Protocol::kLL128:
      return n * kLL128BlockBytes;
    case Protocol::kBulk:
      break;
  }
  return ~std::size_t{0};
}

// Blocks whose parts are up to `per_block` bytes.
int blocks_for(std::size_t bytes, std::size_t per_block) {
  return static_cast<int>(std::clamp<std::size_t>((bytes + per_block - 1) / per_block, 1, kMaxBlocks));
}

// Packets go out and come in faster from many blocks of few threads, up to this many: a multiprocessor each.
constexpr int kManyBlocks = 32;

// As sweeps over two and four H200 found it (docs/performance.md); with more ranks the limits of one-shot are guesses.
ForcedChoice table(const CudaShape& shape) {
  if (shape.collective == Collective::kAllReduce) {
    const auto fits = [&](Protocol protocol, bool two_shot) { return refusal(shape, protocol, two_shot) == nullptr; };
    const std::size_t one_shot = shape.size <= 2 ? 128 * kKB : 64 * kKB;
    const std::size_t one_shot_128 = shape.size <= 2 ? 512 * kKB : shape.size <= 4 ? 128 * kKB : 0;
    if (shape.bytes <= one_shot && fits(Protocol::kLL, false)) return {Protocol::kLL, false};
    if (shape.bytes <= one_shot_128 && fits(Protocol::kLL128, false)) return {Protocol::kLL128, false};
    if (shape.bytes <= 512 * kKB && fits(Protocol::kLL, true)) return {Protocol::kLL, true};
    if (shape.bytes <= 2 * kMB && fits(Protocol::kLL128, true)) return {Protocol::kLL128, true};
    // Between two ranks one shot sends twice the bytes of two, and saves a trip.
    return {Protocol::kBulk, shape.size > 2 || shape.bytes > 16 * kMB};
  }
  if (shape.bytes <= 128 * kKB && refusal(shape, Protocol::kLL, false) == nullptr) return {Protocol::kLL, false};
  if (shape.bytes <= 1 * kMB && refusal(shape, Protocol::kLL128, false) == nullptr) return {Protocol::kLL128, false};
  return {Protocol::kBulk, false};
}

// Of what a block has for each peer. Large ones, because each step of a block takes a trip while other blocks fill the
// links; but where a few would do, the last of them is used up with nothing on its way.
std::size_t piece_for(std::size_t each) {
  if (each <= 2 * kBulkPieceBytes) return std::clamp<std::size_t>(each, 16, kBulkPieceBytes);
  return std::clamp(part_size(each, 8), kBulkPieceBytes / 2, kBulkPieceBytes);
}

int number(std::string_view text, int most) {
  int value = 0;
  return parse_number(text, 0, most, value) ? value : -1;
}

}  // namespace

std::vector<std::string> algorithm_names() {
  std::vector<std::string> names;
  for (const Named& named : kNamed) names.emplace_back(named.name);
  names.emplace_back(kCopyEngineName);
  return names;
}

std::vector<std::string> kernel_names(Collective collective) {
  std::vector<std::string> names;
  for (const Named& named : kNamed) {
    const bool for_it = collective == Collective::kAllReduce || !named.two_shot;
    if (for_it && collective != Collective::kBarrier) names.emplace_back(named.name);
  }
  return names;
}

std::optional<ForcedChoice> parse_forced(std::string_view text) {
  if (text.empty()) return std::nullopt;
  const std::size_t at = std::min(text.find('@'), text.size());
  const auto found =
      std::find_if(kNamed.begin(), kNamed.end(), [&](const Named& n) { return n.name == text.substr(0, at); });
  ForcedChoice forced;
  forced.copy_engine = text.substr(0, at) == kCopyEngineName;
  bool good = found != kNamed.end() || forced.copy_engine;
  if (found != kNamed.end()) forced = {found->protocol, found->two_shot};
  if (good && at < text.size()) {
    const std::string_view numbers = text.substr(at + 1);
    const std::size_t x = std::min(numbers.find('x'), numbers.size());
    const std::size_t y = std::min(numbers.find('x', x + 1), numbers.size());
    forced.blocks = number(numbers.substr(0, x), kMaxBlocks);
    if (x < numbers.size()) forced.threads = number(numbers.substr(x + 1, y - x - 1), 512);
    int piece = 0;
    if (y < numbers.size()) piece = number(numbers.substr(y + 1), static_cast<int>(kBulkPieceBytes));
    good = forced.blocks >= 0 && forced.threads >= 0 && forced.threads % 32 == 0 && piece >= 0 && piece % 16 == 0;
    if (good) forced.piece_bytes = static_cast<std::size_t>(piece);
  }
  if (!good) {
    std::string names;
    for (const std::string& name : algorithm_names()) names += (names.empty() ? "" : ", ") + name;
    throw_error(
        ErrorKind::kInvalidArgument,
        "CUDA algorithm '" + std::string(text) + "': must be one of " + names +
            ", then if wanted @BLOCKS, @BLOCKSxTHREADS or @BLOCKSxTHREADSxPIECE with at most 64 blocks, 512 threads (a "
            "multiple of 32) and pieces of 65536 bytes (a multiple of 16)");
  }
  return forced;
}

const char* refusal(const CudaShape& shape, Protocol protocol, bool two_shot) {
  if (two_shot && shape.collective != Collective::kAllReduce) return "only an all-reduce has two shots";
  if (part_bytes(shape, two_shot) > capacity(protocol, shape.most_blocks)) return "larger than the slots";
  if (protocol == Protocol::kLL128) {
    if (!shape.ll128) return "the links do not pass the probe for lines of 128 bytes";
    if (shape.dtype == DataType::kComplex128) return "elements of 16 bytes do not fit the lines";
  }
  return nullptr;
}

bool takes_forced(const CudaShape& shape, const std::optional<ForcedChoice>& forced) {
  return forced && !forced->copy_engine && refusal(shape, forced->protocol, forced->two_shot) == nullptr;
}

Choice choose(const CudaShape& shape, const std::optional<ForcedChoice>& forced) {
  const ForcedChoice wanted = takes_forced(shape, forced) ? *forced : table(shape);
  Choice choice;
  choice.protocol = wanted.protocol;
  choice.two_shot = wanted.two_shot;
  const std::size_t part = part_bytes(shape, wanted.two_shot);
  switch (wanted.protocol) {
    case Protocol::kLL: {
      const int least = blocks_for(part, kLLBlockBytes);
      choice.blocks =
          std::max(least, wanted.blocks != 0 ? wanted.blocks : std::min(kManyBlocks, blocks_for(part, kKB)));
      break;
    }
    case Protocol::kLL128: {
      const int least = blocks_for(part, kLL128BlockBytes);
      const int table_blocks = std::max(blocks_for(part, 8 * kKB), std::min(kManyBlocks, blocks_for(part, 4 * kKB)));
      choice.blocks = std::max(least, wanted.blocks != 0 ? wanted.blocks : table_blocks);
      break;
    }
    case Protocol::kBulk:
      choice.blocks = wanted.blocks != 0 ? wanted.blocks : blocks_for(part, 16 * kKB);
      break;
  }
  choice.blocks = std::min(choice.blocks, shape.most_blocks);
  const std::size_t each = part_size(part, choice.blocks);
  choice.threads = wanted.threads != 0 ? wanted.threads
                                       : static_cast<int>(std::clamp<std::size_t>((each / 16 + 31) / 32 * 32, 32, 512));
  choice.piece_bytes = wanted.piece_bytes != 0 ? wanted.piece_bytes : piece_for(each);
  return choice;
}

bool choose_copy_engine(const Call& call, int size, bool between_gpus, const std::optional<ForcedChoice>& forced) {
  if (!copy_engines_can(call, size)) return false;
  if (forced) return forced->copy_engine;
  if (!between_gpus) return false;
  const std::size_t bytes = agreed_bytes(call, size);
  switch (call.collective) {
    case Collective::kAllGather:
    case Collective::kAllToAll:
      return bytes * static_cast<std::size_t>(size) >= kLeastCopyEngine;
    case Collective::kAllReduce:
      return bytes >= kLeastCopyEngineAllReduce;
    default:
      return false;
  }
}

std::string_view name_of(const Choice& choice) noexcept {
  for (const Named& named : kNamed) {
    if (named.protocol == choice.protocol && named.two_shot == choice.two_shot) return named.name;
  }
  return "unknown";
}

std::string to_string(const Choice& choice) {
  return std::string(name_of(choice)) + "@" + std::to_string(choice.blocks) + "x" + std::to_string(choice.threads);
}

}  // namespace tutti::cuda
