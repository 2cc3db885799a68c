#include "algorithm/cuda/plan_add_rms_norm.h"

#include <algorithm>

#include "channel/cuda/scratch_layout.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

constexpr std::size_t kKB = 1024, kMB = 1024 * 1024;

bool two_shot(NormPattern pattern) { return pattern != NormPattern::kLL && pattern != NormPattern::kLL128; }

std::size_t divided(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

// Rows between ranks, then between blocks.
void cut_rows(NormPlan& plan, int size, int most_blocks) {
  AddRmsNormArgs& args = plan.args;
  args.chunks = two_shot(plan.pattern) ? size : 1;
  args.chunk_rows = std::max<std::size_t>(1, divided(args.rows, static_cast<std::size_t>(args.chunks)));
  const auto most = static_cast<std::size_t>(std::min(most_blocks, kMaxBlocks));
  args.block_rows = divided(args.chunk_rows, most);
  plan.blocks = static_cast<int>(divided(args.chunk_rows, args.block_rows));
}

// Whether a block's slots hold its rows.
bool fits(const NormPlan& plan, bool ll128) {
  const std::size_t bytes = plan.args.block_rows * plan.args.row_bytes;
  const std::size_t lines = kLL128Lines * 120;
  switch (plan.pattern) {
    case NormPattern::kLL:
      return plan.args.block_rows * static_cast<std::size_t>(plan.args.segments) <= kHeldSegments;
    case NormPattern::kLLTwoShot:
      return bytes <= kLLItems * 16;
    case NormPattern::kLL128:
      return ll128 && bytes <= 2 * lines;
    case NormPattern::kLL128TwoShot:
      return ll128 && bytes <= lines;
    case NormPattern::kBulk:
      break;
  }
  return true;
}

NormPattern pattern_of(Protocol protocol, bool two_shots) {
  if (protocol == Protocol::kLL) return two_shots ? NormPattern::kLLTwoShot : NormPattern::kLL;
  if (protocol == Protocol::kLL128) return two_shots ? NormPattern::kLL128TwoShot : NormPattern::kLL128;
  return NormPattern::kBulk;
}

struct Limit {
  NormPattern pattern;
  std::size_t bytes;  // of the input
};
// The limits of the all-reduce's own table; one shot adds the residual and normalises all rows on every rank anyway.
std::vector<Limit> table(int size) {
  if (size <= 2) {
    return {{NormPattern::kLL, 128 * kKB},
            {NormPattern::kLL128, 512 * kKB},
            {NormPattern::kLL128TwoShot, 2 * kMB},
            {NormPattern::kLLTwoShot, 512 * kKB}};
  }
  return {{NormPattern::kLL, 64 * kKB},
          {NormPattern::kLLTwoShot, 256 * kKB},
          {NormPattern::kLL128TwoShot, 2 * kMB},
          {NormPattern::kLLTwoShot, 512 * kKB}};
}

void complete(NormPlan& plan) {
  const std::size_t block_bytes = plan.args.block_rows * plan.args.row_bytes;
  if (plan.pattern == NormPattern::kLL) {
    plan.threads = std::clamp(static_cast<int>(plan.args.block_rows) * plan.args.segments * 32, 32, kNormThreads);
  }
  if (plan.pattern == NormPattern::kBulk) {
    // Several pieces of a large part, so that the trips of one overlap the other's.
    const std::size_t eighth = divided(divided(block_bytes, 8), 16) * 16;
    plan.args.piece_bytes = std::clamp<std::size_t>(eighth, 16 * kKB, kBulkPieceBytes);
  }
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

[[noreturn]] void refuse(ErrorKind kind, const std::string& why) {
  throw_error(kind, "all_reduce_add_rms_norm: " + why);
}

}  // namespace

void check_add_rms_norm(const CudaAddRmsNorm& call) {
  const bool float_type =
      call.dtype == DataType::kBfloat16 || call.dtype == DataType::kFloat16 || call.dtype == DataType::kFloat32;
  if (!float_type) refuse(ErrorKind::kInvalidArgument, "the dtype must be bf16, fp16 or fp32");
  const std::size_t row_bytes = call.hidden * size_of(call.dtype);
  if (row_bytes == 0 || row_bytes % 16 != 0 || row_bytes > kMostSegments * kSegmentBytes) {
    refuse(ErrorKind::kUnsupported, "a row has " + std::to_string(row_bytes) +
                                        " bytes; it must be a multiple of 16 up to 512 KB: use all_reduce and a norm");
  }
  const std::size_t bytes = call.rows * row_bytes;
  if (call.rows > 0 && (call.input == nullptr || call.residual == nullptr || call.weight == nullptr ||
                        call.residual_output == nullptr || call.output == nullptr)) {
    refuse(ErrorKind::kInvalidArgument, "input, residual, weight and both outputs must not be null");
  }
  if (call.fp8 != (call.scale != nullptr || call.row_scales != nullptr) ||
      (call.scale != nullptr && call.row_scales != nullptr)) {
    refuse(ErrorKind::kInvalidArgument, "an fp8 output takes either scale or row_scales, any other output neither");
  }
  const std::size_t output_bytes = call.fp8 ? call.rows * call.hidden : bytes;
  const bool in_place = call.output == call.input && !call.fp8;
  if ((!in_place && overlap(call.output, output_bytes, call.input, bytes)) ||
      overlap(call.output, output_bytes, call.residual_output, bytes) ||
      overlap(call.output, output_bytes, call.residual, bytes) ||
      overlap(call.residual_output, bytes, call.input, bytes) ||
      (call.residual_output != call.residual && overlap(call.residual_output, bytes, call.residual, bytes))) {
    refuse(ErrorKind::kInvalidArgument,
           "the output may be the input, if both have one dtype, and the residual's output the residual; nothing else "
           "may overlap");
  }
}

NormPlan plan_add_rms_norm(const CudaAddRmsNorm& call, int size, int most_blocks, bool ll128,
                           const std::optional<ForcedChoice>& forced) {
  NormPlan plan;
  AddRmsNormArgs& args = plan.args;
  args.input = static_cast<const std::byte*>(call.input);
  args.residual = static_cast<const std::byte*>(call.residual);
  args.weight = static_cast<const std::byte*>(call.weight);
  args.residual_output = static_cast<std::byte*>(call.residual_output);
  args.output = static_cast<std::byte*>(call.output);
  args.scale = call.scale;
  args.row_scales = call.row_scales;
  args.rows = call.rows;
  args.row_bytes = call.hidden * size_of(call.dtype);
  args.segments = static_cast<int>(divided(args.row_bytes, kSegmentBytes));
  args.hidden = static_cast<float>(call.hidden);
  args.epsilon = call.epsilon;
  args.fp8 = call.fp8 ? 1 : 0;
  const auto takes = [&](NormPattern pattern) {
    plan.pattern = pattern;
    cut_rows(plan, size, most_blocks);
    return fits(plan, ll128);
  };
  bool found = forced && !forced->copy_engine && takes(pattern_of(forced->protocol, forced->two_shot));
  for (const Limit& limit : table(size)) {
    found = found || (args.rows * args.row_bytes <= limit.bytes && takes(limit.pattern));
  }
  if (!found) takes(NormPattern::kBulk);
  complete(plan);
  return plan;
}

Choice choice_of(const NormPlan& plan) noexcept {
  const Protocol protocol = plan.pattern == NormPattern::kBulk ? Protocol::kBulk
                            : plan.pattern == NormPattern::kLL || plan.pattern == NormPattern::kLLTwoShot
                                ? Protocol::kLL
                                : Protocol::kLL128;
  return {protocol, two_shot(plan.pattern), plan.blocks, plan.threads, 0};
}

std::string to_string(const NormPlan& plan) { return to_string(choice_of(plan)); }

}  // namespace tutti::cuda
