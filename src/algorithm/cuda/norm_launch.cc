#include "algorithm/cuda/norm_launch.h"

#include <algorithm>

#include "base/rounding.h"
#include "channel/cuda/scratch_layout.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

// The most that one block sends to each peer. An all-reduce spreads a row over many blocks; from here on that saves
// more time than a second kernel costs: docs/performance.md.
constexpr std::size_t kOneKernelBlockBytes = 8 * kKB;

// What one shot over LL is good for, with all rows.
std::size_t one_shot_bytes(int size) { return size <= 2 ? 512 * kKB : 64 * kKB; }

// Cuts the rows between at most `most_blocks` blocks.
void cut_rows(NormLaunch& launch, std::size_t most_blocks) {
  AddRmsNormArgs& args = launch.args;
  args.block_rows = std::max<std::size_t>(1, ceil_div(args.rows, most_blocks));
  launch.blocks = std::max(1, static_cast<int>(ceil_div(args.rows, args.block_rows)));
}

bool takes_one_kernel(NormLaunch& launch, int size, int most_blocks, const std::optional<ForcedChoice>& forced) {
  const AddRmsNormArgs& args = launch.args;
  cut_rows(launch, static_cast<std::size_t>(std::min(most_blocks, kMaxBlocks)));
  if (args.rows == 0) return true;  // the second of two would have no blocks
  if (args.block_rows * static_cast<std::size_t>(args.segments) > kHeldSegments) return false;
  if (forced && !forced->copy_engine) return forced->protocol == Protocol::kLL && !forced->two_shot;
  return args.rows * args.row_bytes <= one_shot_bytes(size) && args.block_rows * args.row_bytes <= kOneKernelBlockBytes;
}

// The second kernel sends nothing, so its blocks are as many as there are rows, or a few rows are one block's.
void cut_norm_rows(NormLaunch& launch) {
  constexpr int kSegments = 8;        // that keep a block busy
  constexpr std::size_t kMany = 512;  // blocks: more than a GPU has processors for
  AddRmsNormArgs& args = launch.args;
  args.block_rows = args.rows < kMany ? 1 : static_cast<std::size_t>(std::max(1, kSegments / args.segments));
  launch.blocks = static_cast<int>(ceil_div(args.rows, args.block_rows));
  const int tasks = static_cast<int>(args.block_rows) * args.segments;
  constexpr int kWarps = kNormThreads / 32;
  launch.vectors = 0;
  for (const int vectors : kNormVectors) {
    if (launch.aligned && launch.vectors == 0 && tasks <= vectors * kWarps) launch.vectors = vectors;
  }
  const int warps = launch.vectors == 0 ? kWarps : (tasks + launch.vectors - 1) / launch.vectors;
  launch.threads = 32 * warps;
}

bool is_aligned(const AddRmsNormArgs& args) {
  const std::byte* const memory[] = {args.input, args.residual, args.weight, args.residual_output, args.output};
  return std::all_of(std::begin(memory), std::end(memory),
                     [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16 == 0; });
}

// Any memory of the input's size that the second kernel reads before it writes there.
std::byte* place_of_sum(const AddRmsNorm& call) {
  if (!call.fp8) return static_cast<std::byte*>(call.output);
  return static_cast<std::byte*>(call.residual_output != call.residual ? call.residual_output : call.workspace);
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto* x = static_cast<const std::byte*>(a);
  const auto* y = static_cast<const std::byte*>(b);
  return x < y + b_bytes && y < x + a_bytes;
}

[[noreturn]] void refuse(ErrorKind kind, const std::string& why) {
  throw_error(kind, "all_reduce_add_rms_norm: " + why);
}

// What the sums are written over must be nothing else.
void check_workspace(const AddRmsNorm& call, std::size_t bytes, std::size_t output_bytes) {
  if (call.workspace == nullptr) return;
  const std::size_t row_bytes = call.hidden * size_of(call.dtype);
  if (overlap(call.workspace, bytes, call.input, bytes) || overlap(call.workspace, bytes, call.residual, bytes) ||
      overlap(call.workspace, bytes, call.residual_output, bytes) ||
      overlap(call.workspace, bytes, call.output, output_bytes) ||
      overlap(call.workspace, bytes, call.weight, row_bytes)) {
    refuse(ErrorKind::kInvalidArgument, "the workspace must be memory of its own");
  }
}

}  // namespace

void check_add_rms_norm(const AddRmsNorm& call) {
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
  if (call.fp8 && call.rows > 0 && call.residual_output == call.residual && call.workspace == nullptr) {
    refuse(
        ErrorKind::kInvalidArgument,
        "an fp8 output leaves no room for the sums where residual_output is residual: give a workspace of the input's "
        "size, or another residual_output");
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
  check_workspace(call, bytes, output_bytes);
}

NormLaunch make_norm_launch(const AddRmsNorm& call, int size, int most_blocks, bool ll128,
                            const std::optional<ForcedChoice>& forced) {
  NormLaunch launch;
  AddRmsNormArgs& args = launch.args;
  args.input = static_cast<const std::byte*>(call.input);
  args.residual = static_cast<const std::byte*>(call.residual);
  args.weight = static_cast<const std::byte*>(call.weight);
  args.residual_output = static_cast<std::byte*>(call.residual_output);
  args.output = static_cast<std::byte*>(call.output);
  args.scale = call.scale;
  args.row_scales = call.row_scales;
  args.rows = call.rows;
  args.row_bytes = call.hidden * size_of(call.dtype);
  args.segments = static_cast<int>(ceil_div(args.row_bytes, kSegmentBytes));
  args.hidden = static_cast<float>(call.hidden);
  args.epsilon = call.epsilon;
  args.fp8 = call.fp8 ? 1 : 0;
  launch.one_kernel = takes_one_kernel(launch, size, most_blocks, forced);
  if (launch.one_kernel) {
    launch.threads = std::clamp(static_cast<int>(args.block_rows) * args.segments * 32, 32, kNormThreads);
    launch.choice = {Protocol::kLL, false, launch.blocks, launch.threads, 0};
    launch.aligned = is_aligned(args);
    return launch;
  }
  launch.choice =
      choose({Collective::kAllReduce, call.dtype, size, args.rows * args.row_bytes, most_blocks, ll128}, forced);
  launch.sum = place_of_sum(call);
  args.input = launch.sum;
  launch.aligned = is_aligned(args);
  cut_norm_rows(launch);
  return launch;
}

Call sum_of(const AddRmsNorm& call, const NormLaunch& launch) noexcept {
  Call sum;
  sum.collective = Collective::kAllReduce;
  sum.dtype = call.dtype;
  sum.count = call.rows * call.hidden;
  sum.input = Blocks::single(call.input, launch.args.rows * launch.args.row_bytes);
  sum.output = Blocks::single(launch.sum, launch.args.rows * launch.args.row_bytes);
  return sum;
}

std::string_view name_of(const NormLaunch& launch) noexcept {
  return launch.one_kernel ? "one_kernel" : name_of(launch.choice);
}

std::string to_string(const NormLaunch& launch) {
  std::string text = launch.one_kernel ? std::string(name_of(launch)) : to_string(launch.choice) + ", norm";
  return text.append("@").append(std::to_string(launch.blocks)).append("x").append(std::to_string(launch.threads));
}

}  // namespace tutti::cuda
