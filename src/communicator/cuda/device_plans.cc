#include "communicator/cuda/device_plans.h"

#include <algorithm>
#include <utility>

#include "algorithm/cuda/plan_exchange.h"
#include "base/collective_traits.h"
#include "base/log.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"
#include "executor/program/serves.h"
#include "plan/operations.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti::cuda {

using executor::DevicePlan;
using executor::DeviceVariant;

namespace {

constexpr std::size_t kPage = 4096;

constexpr std::size_t round_up(std::size_t bytes, std::size_t unit) { return (bytes + unit - 1) / unit * unit; }

constexpr int kIn = 0, kOut = 1;

bool overlap(const std::byte* a, const std::byte* b, std::size_t bytes) noexcept {
  return a < b + bytes && b < a + bytes;
}

}  // namespace

DevicePlans::DevicePlans(std::vector<PlanFile> files, GpuGroup& group, Store& store)
    : rank_(group.world().rank), size_(group.world().size), device_(group.device()) {
  executor::DeviceLimits limits;
  limits.blocks = group.most_blocks();
  std::size_t total = 0;
  for (PlanFile& file : files) {
    const std::optional<Collective> collective = plan::rules_of(file.plan->collective).call;
    if (!collective || static_cast<int>(file.plan->ranks.size()) != size_) continue;
    auto entry = std::make_unique<Entry>();
    entry->name = "plan:" + file.plan->name;
    entry->collective = *collective;
    entry->plan = file.plan;
    entry->shape = plan::shape_of(*file.plan);
    entry->identity = file.identity;
    try {
      entry->device = std::make_shared<DevicePlan>(file.plan, rank_, limits);
      entry->offset = total;
      total += round_up(entry->device->memory_bytes(), kPage);
    } catch (const Error& error) {
      entry->unfit = error.what();  // on all ranks alike; said once
      const Config config = config_from_environment();
      Logger(parse_log_level(config.log_level), rank_).warning(file.path + " is passed over: " + error.what());
    }
    entries_.push_back(std::move(entry));
  }
  if (total == 0) return;
  try {
    memory_ = group.allocate(store, "plans", total);
    // Streams of one priority share queues with those of calls, which may wait for a peer.
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest), "cudaStreamCreateWithPriority");
    for (const auto& entry : entries_) {
      if (entry->device == nullptr) continue;
      const std::vector<std::byte> image = entry->device->state();
      entry->state = states_.emplace_back(allocate(image.size()));
      upload(entry->state, image.data(), image.size());
    }
    // Here, where no kernel waits.
    chunks_.push_back({allocate(kChunkBytes), kChunkBytes});
  } catch (...) {
    release();
    throw;
  }
}

DevicePlans::~DevicePlans() {
  try {
    const DeviceGuard guard(device_);
    release();
  } catch (const Error&) {
    // CUDA is gone, and the memory with it.
  }
}

void DevicePlans::release() noexcept {
  for (std::byte* memory : states_) static_cast<void>(cudaFree(memory));
  for (const Chunk& chunk : chunks_) static_cast<void>(cudaFree(chunk.memory));
  states_.clear();
  chunks_.clear();
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  stream_ = nullptr;
  memory_.reset();
}

std::byte* DevicePlans::allocate(std::size_t bytes) {
  void* memory = nullptr;
  check_cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
  return static_cast<std::byte*>(memory);
}

// On a stream of its own: the legacy one may hold a wait for a peer.
void DevicePlans::upload(void* to, const void* from, std::size_t bytes) {
  check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyHostToDevice, stream_), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

std::byte* DevicePlans::take(std::size_t bytes) {
  const std::size_t whole = round_up(std::max<std::size_t>(bytes, 1), 256);
  while (chunk_ < chunks_.size() && chunks_[chunk_].bytes - taken_ < whole) {
    ++chunk_;
    taken_ = 0;
  }
  if (chunk_ == chunks_.size()) {
    const std::size_t size = std::max(kChunkBytes, whole);
    chunks_.push_back({allocate(size), size});
  }
  std::byte* const memory = chunks_[chunk_].memory + taken_;
  taken_ += whole;
  used_ += whole;
  return memory;
}

// Keeps the chunks: freeing memory waits for all kernels of the device, also for those that wait for a peer.
void DevicePlans::drop() noexcept {
  uploaded_.clear();
  chunk_ = taken_ = used_ = 0;
}

std::string DevicePlans::refusal(const Entry& entry, const Call& call) const {
  const plan::Plan& plan = *entry.plan;
  if (!entry.unfit.empty()) return entry.unfit;
  if (call.uneven) return "needs blocks of equal size";
  const std::size_t bytes = agreed_bytes(call, size_);
  if (bytes == 0 || bytes < plan.min_message_bytes || bytes > plan.max_message_bytes) {
    return "is for messages of other sizes";
  }
  if (has_root(call.collective) && call.root != plan.root) {
    return "is for another root";
  }
  if (reduces(call.collective) && call.op == ReduceOp::kPremulSum) return "multiplies by no factor on GPUs";
  const char* reason = executor::refusal(plan, call.dtype, reduces(call.collective) ? call.op : ReduceOp::kSum);
  return reason != nullptr ? reason : "";
}

const DevicePlans::Entry* DevicePlans::choose(const Call& call) const {
  for (const auto& entry : entries_) {
    if (entry->collective == call.collective && refusal(*entry, call).empty()) return entry.get();
  }
  return nullptr;
}

DeviceVariant DevicePlans::variant_of(const Entry& entry, const Call& call, std::size_t bytes) const {
  const plan::Shape& shape = entry.shape;
  const std::size_t whole = agreed_bytes(call, size_);
  DeviceVariant variant;
  variant.bytes = bytes;
  variant.has_input = !traits_of(call.collective).root_reads || rank_ == call.root;
  variant.has_output = !traits_of(call.collective).root_writes || rank_ == call.root;
  variant.averages = reduces(call.collective) && call.op == ReduceOp::kAvg && variant.has_output;
  if (!variant.has_input || !variant.has_output) return variant;
  if (entry.plan->in_place) {
    const int own = shape.blocks[kIn] < shape.blocks[kOut] ? rank_ : 0;
    variant.input_in_place = shape.blocks[kIn] <= shape.blocks[kOut];
    for (int b = 0; variant.input_in_place && b < shape.blocks[kIn]; ++b) {
      variant.input_in_place = call.input.data(b) == call.output.data(own + b);
    }
    return variant;
  }
  for (int i = 0; call.collective != Collective::kAllToAll && i < shape.blocks[kIn]; ++i) {
    for (int o = 0; o < shape.blocks[kOut]; ++o) {
      variant.overlaps = variant.overlaps || overlap(call.input.data(i), call.output.data(o), whole);
    }
  }
  return variant;
}

const DevicePlans::Uploaded& DevicePlans::uploaded(const Entry& entry, const DeviceVariant& variant) {
  const auto found = uploaded_.find({&entry, variant});
  if (found != uploaded_.end()) return found->second;
  executor::DeviceMemory placed;
  for (int r = 0; r < size_; ++r) placed.ranks.push_back(memory_->data(r) + entry.offset);
  placed.state = entry.state;
  const executor::DeviceRecords records = entry.device->records(variant, placed);
  const RelaxedCapture relaxed;  // torch captures in the global mode
  Uploaded made;
  const auto put = [this](const auto& list) {
    using Record = typename std::decay_t<decltype(list)>::value_type;
    std::byte* to = take(list.size() * sizeof(Record));
    if (!list.empty()) upload(to, list.data(), list.size() * sizeof(Record));
    return reinterpret_cast<const Record*>(to);
  };
  made.ops = put(records.ops);
  made.operands = put(records.operands);
  made.blocks = put(records.blocks);
  return uploaded_.emplace(Key{&entry, variant}, made).first->second;
}

executor::PlanArgs DevicePlans::args(const Entry& entry, const Call& given, std::size_t begin) {
  Call call = given;
  // One buffer, of which the root may name the input only.
  if (call.collective == Collective::kBroadcast && rank_ == call.root) call.output = call.input;
  const std::size_t bytes = std::min(entry.device->segment_bytes(), agreed_bytes(call, size_) - begin);
  const DeviceVariant variant = variant_of(entry, call, bytes);
  const Uploaded& records = uploaded(entry, variant);
  executor::PlanArgs args;
  args.ops = records.ops;
  args.operands = records.operands;
  args.blocks = records.blocks;
  args.invocations = reinterpret_cast<std::uint64_t*>(entry.state);
  args.slots = reinterpret_cast<std::uint64_t*>(entry.state + entry.device->slots_offset());
  for (const int side : {kIn, kOut}) {
    if (!(side == kIn ? variant.has_input : variant.has_output)) continue;
    const Blocks& blocks = side == kIn ? call.input : call.output;
    for (int b = 0; b < entry.shape.blocks[static_cast<std::size_t>(side)]; ++b) {
      args.user[side * executor::kUserBlocks + b] = const_cast<std::byte*>(blocks.data(b)) + begin;
    }
  }
  args.halves = entry.device->halves();
  args.spec.dtype = call.dtype;
  args.spec.op = call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op;
  args.spec.divisor = size_;
  return args;
}

}  // namespace tutti::cuda
