#include "communicator/cuda/device_plans.h"

#include <algorithm>
#include <utility>

#include "algorithm/cuda/kernels.h"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/cuda/team.cuh"
#include "algorithm/cuda/twin.cuh"
#include "base/collective_traits.h"
#include "base/rounding.h"
#include "communicator/cuda/twin_trial.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/own_memory.h"
#include "device/cuda/relaxed_capture.h"
#include "executor/cuda/cluster_size.h"
#include "tutti/error.h"

namespace tutti::cuda {

using executor::DevicePlan;
using executor::DeviceVariant;

namespace {

constexpr std::size_t kPage = 4096;

constexpr int kIn = 0, kOut = 1;

// Of the memory that peers map; 0 of what is unfit.
std::size_t memory_of(const TablePlan& plan) noexcept {
  if (plan.device != nullptr) return round_up(plan.device->memory_bytes(), kPage);
  return plan.kernel_code != nullptr ? round_up(kNativeWords + plan.kernel->scratch_bytes, kPage) : 0;
}

bool overlap(const std::byte* a, const std::byte* b, std::size_t bytes) noexcept {
  return a < b + bytes && b < a + bytes;
}

}  // namespace

DevicePlans::DevicePlans(const GpuGroup& group, const CompiledPlans::Options& compile)
    : rank_(group.world().rank),
      size_(group.world().size),
      device_(group.device()),
      logger_(compile.logger),
      compiled_(compile) {
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  try {
    // Streams of one priority share queues with those of calls, which may wait for a peer.
    stream_ = make_urgent_stream();
    chunks_.push_back({make_own_memory(device_, kChunkBytes), kChunkBytes});
    together_ = twins_meet([this] { return try_together(); });
    count_clusters(group);
  } catch (...) {
    release();
    throw;
  }
}

Twins DevicePlans::try_together() {
  constexpr std::uint64_t kLimitNs = 20'000'000;
  std::uint64_t words[4] = {};
  auto* const memory = reinterpret_cast<std::uint64_t*>(chunks_.front().memory.get());  // records come later
  upload(memory, words, sizeof words);
  cudaStream_t const other = make_urgent_stream();
  cudaError_t error = cudaSuccess;
  for (int twin = 0; twin < 2; ++twin) {
    TwinArgs args{memory, twin, kLimitNs};
    void* parameters[] = {&args};
    const cudaError_t launched =
        cudaLaunchCooperativeKernel(twin_kernel(), dim3(1), dim3(1), parameters, 0, twin == 0 ? stream_ : other);
    if (error == cudaSuccess) error = launched;
  }
  for (const cudaStream_t stream : {stream_, other}) {
    const cudaError_t ended = cudaStreamSynchronize(stream);
    if (error == cudaSuccess) error = ended;
  }
  static_cast<void>(cudaStreamDestroy(other));
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return Twins::kRefused;
  }
  check_cuda(cudaMemcpyAsync(words, memory, sizeof words, cudaMemcpyDeviceToHost, stream_), "cudaMemcpyAsync");
  check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
  return words[2] != 0 && words[3] != 0 ? Twins::kMet : Twins::kMissed;
}

// They come whole or not at all, so they are for kernels that do. Kernels of ranks that share a GPU would have to find
// room for theirs beside each other.
void DevicePlans::count_clusters(const GpuGroup& group) {
  int major = 0;
  check_cuda(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device_), "cudaDeviceGetAttribute");
  if (!together_ || group.sharers() > 1 || major < 9) return;
  for (unsigned index = 1; index < std::size(clusters_); ++index) {
    const unsigned size = 1U << index;
    // Plans of other communicators, each with as many, must find room beside these.
    clusters_[index] = std::min(group.wanted_blocks(), group.processors() / 4) / static_cast<int>(size);
    for (const Reducer reducer : {Reducer::kSumF32, Reducer::kSumBf16, Reducer::kSumF16, Reducer::kAny}) {
      cudaLaunchAttribute how{};
      how.id = cudaLaunchAttributeClusterDimension;
      how.val.clusterDim = {size, 1, 1};
      const cudaLaunchConfig_t config{dim3(size), dim3(DevicePlan::kMostThreads + kControlThreads), 0, stream_, &how,
                                      1};
      int held = 0;
      if (cudaOccupancyMaxActiveClusters(&held, plan_kernel_of(reducer), &config) != cudaSuccess) {
        static_cast<void>(cudaGetLastError());  // the GPU has no such clusters
        held = 0;
      }
      clusters_[index] = std::min(clusters_[index], held);
    }
  }
}

int DevicePlans::most_cluster(int blocks) const noexcept {
  int most = 1;
  for (std::size_t index = 1; index < std::size(clusters_); ++index) {
    if (clusters_[index] >= blocks) most = 1 << index;
  }
  return most;
}

std::size_t DevicePlans::bytes_of(const std::vector<std::unique_ptr<TablePlan>>& plans) noexcept {
  std::size_t total = 0;
  for (const auto& plan : plans) {
    total += memory_of(*plan);
  }
  return total;
}

// Once: what is missed is missed for all plans.
void DevicePlans::warn_of_blocks(const std::vector<std::unique_ptr<TablePlan>>& plans) {
  for (const auto& plan : plans) {
    if (together_ || warned_ || plan->device == nullptr || plan->device->blocks() == 1) continue;
    warned_ = true;
    logger_.warning(
        "plan:" + plan->name +
        " has several thread blocks, which come to this GPU one by one: beside other plans they may wait "
        "for blocks that find no room there. Kernels that come whole have not met when it was tried, perhaps "
        "because the GPU was busy");
  }
}

DevicePlans::Addition DevicePlans::make(std::vector<std::unique_ptr<TablePlan>> plans,
                                        std::shared_ptr<SymmetricMemory> memory) {
  const DeviceGuard guard(device_);
  const RelaxedCapture relaxed;
  Addition made;
  made.plans_ = std::move(plans);
  std::size_t offset = 0;
  for (const auto& plan : made.plans_) {
    if (memory_of(*plan) == 0) continue;
    const std::vector<std::byte> image =
        plan->device != nullptr ? plan->device->state() : std::vector<std::byte>(sizeof(NativeState));
    const Placed& place =
        made.placed_[plan.get()] = {memory, offset, make_own_memory(device_, image.size()), plan->name + "+compiled"};
    upload(place.state.get(), image.data(), image.size());
    offset += memory_of(*plan);
  }
  warn_of_blocks(made.plans_);
  table_.make_room(made.plans_.size());
  return made;
}

void DevicePlans::add(Addition made) {
  placed_.merge(made.placed_);
  table_.add(std::move(made.plans_));
}

DevicePlans::~DevicePlans() {
  give_back_on(device_, [this] { release(); });
}

void DevicePlans::release() noexcept {
  compiled_.unload();
  chunks_.clear();
  if (stream_ != nullptr) static_cast<void>(cudaStreamDestroy(stream_));
  stream_ = nullptr;
  placed_.clear();
  table_ = {};  // with the kernels' code
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
    chunks_.push_back({make_own_memory(device_, size), size});
  }
  std::byte* const memory = chunks_[chunk_].memory.get() + taken_;
  taken_ += whole;
  used_ += whole;
  return memory;
}

// Keeps the chunks for what comes next.
void DevicePlans::drop() noexcept {
  uploaded_.clear();
  chunk_ = taken_ = used_ = 0;
}

DeviceVariant DevicePlans::variant_of(const PlannedCall& planned, std::size_t bytes) const {
  const auto& [plan, call, place] = planned;
  const plan::Shape& shape = plan.shape;
  const std::size_t whole = agreed_bytes(call, size_);
  DeviceVariant variant;
  variant.bytes = bytes;
  variant.has_input = !traits_of(call.collective).root_reads || rank_ == call.root;
  variant.has_output = !traits_of(call.collective).root_writes || rank_ == call.root;
  variant.averages = reduces(call.collective) && call.op == ReduceOp::kAvg && variant.has_output;
  if (plan.kernel || !variant.has_input || !variant.has_output) return variant;
  variant.mapped_input = place != nullptr && place->input.memory != nullptr;
  variant.mapped_output = place != nullptr && place->output.memory != nullptr;
  if (plan.plan->in_place) {
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

const DevicePlans::Uploaded& DevicePlans::uploaded(const TablePlan& plan, const DeviceVariant& variant) {
  const auto found = uploaded_.find({&plan, variant});
  if (found != uploaded_.end()) return found->second;
  executor::DeviceMemory placed;
  const Placed& place = placed_.at(&plan);
  for (int r = 0; r < size_; ++r) placed.ranks.push_back(place.memory->data(r) + place.offset);
  placed.state = place.state.get();
  const executor::DeviceRecords records = plan.device->records(variant, placed);
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
  made.cluster = executor::cluster_of(records, most_cluster(plan.device->blocks()));
  return uploaded_.emplace(Key{&plan, variant}, made).first->second;
}

std::size_t DevicePlans::segment_bytes(const PlannedCall& planned) const {
  return planned.plan.device->segment_bytes(variant_of(planned, 0));
}

DeviceVariant DevicePlans::segment_of(const PlannedCall& planned, std::size_t begin) const {
  return variant_of(planned, std::min(segment_bytes(planned), agreed_bytes(planned.call, size_) - begin));
}

void DevicePlans::place_user(const PlannedCall& planned, std::size_t begin, const DeviceVariant& variant,
                             std::byte* (&user)[2 * executor::kUserBlocks]) {
  for (const int side : {kIn, kOut}) {
    if (!(side == kIn ? variant.has_input : variant.has_output)) continue;
    const Blocks& blocks = side == kIn ? planned.call.input : planned.call.output;
    for (int b = 0; b < planned.plan.shape.blocks[static_cast<std::size_t>(side)]; ++b) {
      user[side * executor::kUserBlocks + b] = const_cast<std::byte*>(blocks.data(b)) + begin;
    }
  }
}

executor::PeerBuffers DevicePlans::peers_of(const PlannedCall& planned, std::size_t begin) const {
  executor::PeerBuffers peers;
  if (planned.place == nullptr) return peers;
  peers.stride = agreed_bytes(planned.call, size_);
  const DevicePlan& plan = *planned.plan.device;
  peers.agreed = reinterpret_cast<std::uint64_t*>(placed_.at(&planned.plan).state.get() + plan.agreed_offset());
  const DirectBuffer* const sides[] = {&planned.place->input, &planned.place->output};
  for (int side = 0; side < 2; ++side) {
    for (int r = 0; sides[side]->memory != nullptr && r < size_; ++r) {
      peers.at[side * device::kMaxRanks + r] = sides[side]->memory->data(r) + sides[side]->offset + begin;
    }
  }
  return peers;
}

const CompiledPlans::Kernel* DevicePlans::compiled(const PlannedCall& planned, std::size_t begin, bool may_load) {
  if (!compiled_.enabled()) return nullptr;
  const Call& call = planned.call;
  const bool reducing = reduces(call.collective);
  executor::EmitRequest request{segment_of(planned, begin)};
  request.most_cluster = most_cluster(planned.plan.device->blocks());
  // Whatever a plan only moves, it moves by the same code.
  if (reducing) request.dtype = call.dtype;
  if (reducing && call.op != ReduceOp::kAvg) request.op = call.op;
  return compiled_.find(planned.plan.device, request, may_load);
}

executor::CompiledArgs DevicePlans::compiled_args(const PlannedCall& planned, std::size_t begin) const {
  const Placed& place = placed_.at(&planned.plan);
  executor::CompiledArgs args;
  for (int r = 0; r < size_; ++r) args.memory[r] = place.memory->data(r) + place.offset;
  args.state = place.state.get();
  place_user(planned, begin, segment_of(planned, begin), args.user);
  args.peers = peers_of(planned, begin);
  return args;
}

NativeArgs DevicePlans::native_args(const TablePlan& plan, const Call& given) const {
  PlannedCall planned{plan, given};
  const Call& call = planned.call;
  // Of a broadcast the root's kernel knows one buffer.
  if (call.collective == Collective::kBroadcast && rank_ == call.root) planned.call.output = call.input;
  const Placed& place = placed_.at(&plan);
  NativeArgs args;
  for (int r = 0; r < size_; ++r) args.memory[r] = place.memory->data(r) + place.offset;
  args.state = reinterpret_cast<NativeState*>(place.state.get());
  args.block_bytes = agreed_bytes(call, size_);
  place_user(planned, 0, variant_of(planned, args.block_bytes), args.user);
  args.scratch_bytes = plan.kernel->scratch_bytes;
  args.element_bytes = static_cast<std::uint32_t>(size_of(call.dtype));
  args.root = has_root(call.collective) ? call.root : -1;
  args.spec.dtype = call.dtype;
  args.averages = reduces(call.collective) && call.op == ReduceOp::kAvg ? 1 : 0;
  args.spec.op = args.averages != 0 ? ReduceOp::kSum : call.op;
  args.spec.divisor = size_;
  return args;
}

InterpretedCall DevicePlans::interpreted(const PlannedCall& planned, std::size_t begin) {
  const auto& [plan, call, place] = planned;
  const DeviceVariant variant = segment_of(planned, begin);
  const Uploaded& records = uploaded(plan, variant);
  std::byte* const state = placed_.at(&plan).state.get();
  executor::PlanArgs args;
  args.ops = records.ops;
  args.operands = records.operands;
  args.blocks = records.blocks;
  args.invocations = reinterpret_cast<std::uint64_t*>(state);
  args.slots = reinterpret_cast<std::uint64_t*>(state + plan.device->slots_offset());
  place_user(planned, begin, variant, args.user);
  args.peers = peers_of(planned, begin);
  args.halves = plan.device->halves();
  args.spec.dtype = call.dtype;
  args.spec.op = call.op == ReduceOp::kAvg ? ReduceOp::kSum : call.op;
  args.spec.divisor = size_;
  return {records.cluster, args};
}

}  // namespace tutti::cuda
