// CudaCommunicator's calls without copies, and the registration of callers' memory for them.
#include <algorithm>

#include "algorithm/cuda/kernels.h"
#include "communicator/cuda/cuda_communicator_impl.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/leftovers.h"
#include "device/cuda/relaxed_capture.h"

namespace tutti::cuda {

std::optional<DirectPlace> CudaCommunicatorImpl::direct_place(const Call& call) const {
  if (!takes_registered()) return std::nullopt;
  const CopyEngines engines = !uses_copy_engines(call) ? CopyEngines::kNowhere
                              : forced_                ? CopyEngines::kEverywhere
                                                       : CopyEngines::kAllocated;
  return registrations_.place_of(call, rank_, size_, engines);
}

void CudaCommunicatorImpl::run_direct(const Call& call, const DirectPlace& place, cudaStream_t stream) {
  std::byte* inputs[device::kMaxRanks] = {};
  std::byte* outputs[device::kMaxRanks] = {};
  for (int p = 0; p < size_; ++p) {
    if (place.input.memory != nullptr) inputs[p] = place.input.memory->data(p) + place.input.offset;
    if (place.output.memory != nullptr) outputs[p] = place.output.memory->data(p) + place.output.offset;
  }
  if (place.input.memory == nullptr) inputs[rank_] = call.input.base;
  if (place.output.memory == nullptr) outputs[rank_] = call.output.base;
  direct_calls_.fetch_add(1, std::memory_order_relaxed);
  keep_for_graph(place, stream);
  if (place.by_copy_engines) {
    run_by_copy_engines(call, place, inputs, outputs, stream);
  } else {
    run_direct_kernel(call, place, inputs, outputs, stream);
  }
}

// Where the stream is being captured. Before the first launch: a graph that has a kernel has what it reads.
void CudaCommunicatorImpl::keep_for_graph(const DirectPlace& place, cudaStream_t stream) {
  for (const DirectBuffer* buffer : {&place.input, &place.output}) {
    // Memory of allocate() has no owner here.
    if (buffer->memory.use_count() > 0) collectives_.retain(stream, buffer->memory);
  }
}

void CudaCommunicatorImpl::run_direct_kernel(const Call& call, const DirectPlace& place, std::byte* const* inputs,
                                             std::byte* const* outputs, cudaStream_t stream) {
  const int blocks = direct_blocks();
  const CallRecord record = next_record(call, choice_of(place, blocks, DirectWay::kKernel));
  registrations_.remember(record.hash, place);
  DirectArgs args = make_direct(call, size_, blocks, inputs, outputs, record.hash);
  const Launched how = launch(direct_kernel(call.collective, reducer_of(call.dtype, call.op)), blocks, kDirectWorkers,
                              args, Lane::kCollectives, stream);
  log(call, record, "direct", how);
}

int CudaCommunicatorImpl::direct_blocks() const noexcept {
  return std::min(forced_ && forced_->blocks > 0 ? forced_->blocks : kMaxBlocks, group_->most_blocks());
}

// Why this rank cannot register `ranges`: said to all ranks, which then refuse together.
std::string CudaCommunicatorImpl::problem_with(const std::vector<CudaRange>& ranges) const {
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const auto* begin = static_cast<const std::byte*>(ranges[i].data);
    const std::string which = "registers range " + std::to_string(i) + ", which ";
    if (begin == nullptr || ranges[i].bytes == 0) return which + "has no memory";
    if (registrations_.touches(begin, ranges[i].bytes)) return which + "is registered already, or a part of it";
    for (std::size_t j = 0; j < i; ++j) {
      const auto* other = static_cast<const std::byte*>(ranges[j].data);
      if (begin < other + ranges[j].bytes && other < begin + ranges[i].bytes) {
        return which + "overlaps range " + std::to_string(j);
      }
    }
  }
  return {};
}

std::vector<std::shared_ptr<CudaRegion>> CudaCommunicatorImpl::register_memory(const std::vector<CudaRange>& ranges) {
  require_collectives();
  const DeviceGuard guard(group_->device());
  const RelaxedCapture relaxed;  // mappings may be made and given back beside a capture
  release_retired();
  QuietDevice::of_process().give_back_if_quiet();
  // Made before the ranks agree, which takes no memory any more then.
  std::vector<std::shared_ptr<CudaRegion>> regions;
  std::vector<Registrations::Room> rooms;
  std::string problem;
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    throw_if_failed();
    problem = prepare_copies();
    if (problem.empty()) problem = problem_with(ranges);
    try {
      regions.resize(ranges.size());
      for (const CudaRange& range : ranges) {
        rooms.push_back(Registrations::room_at(static_cast<std::byte*>(range.data)));
      }
    } catch (const std::bad_alloc&) {
      problem = "has no memory";  // within the string
    }
    name = "register " + std::to_string(registration_calls_++);
  }
  const auto made = group_->share(name, ranges, problem);
  std::ranges::copy(made, regions.begin());
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < regions.size(); ++i) registrations_.add(regions[i], std::move(rooms[i]));
  return regions;
}

void CudaCommunicatorImpl::unregister_memory(std::vector<std::shared_ptr<CudaRegion>> regions) {
  const DeviceGuard guard(group_->device());
  const RelaxedCapture relaxed;
  std::string problem;
  std::string name;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& region : regions) {
      if (region == nullptr || !registrations_.holds(*region)) problem = "unregisters memory that is not registered";
    }
    name = "unregister " + std::to_string(registration_calls_++);
  }
  const auto problems = group_->all_gather(name, problem);
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (!problems[r].empty()) {
      throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(r) + " " + problems[r]);
    }
  }
  {
    const std::lock_guard lock(mutex_);
    collectives_.wait();  // kernels under way use the mappings
    for (const auto& region : regions) {
      forget_port_memory(*region);
      registrations_.remove(*region);
    }
  }
  regions.clear();
  release_retired();
  // Waits for all that runs on this GPU, if the memory was of cudaMalloc. When all have come, no rank maps what the
  // others may free now.
  give_back_mappings();
  group_->all_gather(name + ", done", "");
}

std::uint32_t CudaCommunicatorImpl::port_memory(const CudaRegion& region) {
  const std::lock_guard lock(mutex_);
  if (!registrations_.holds(region)) {
    throw_error(ErrorKind::kInvalidArgument,
                "ports take registered memory of this communicator only: register it first");
  }
  const auto [found, fresh] = port_memories_.try_emplace(&region, 0);
  if (fresh) {
    std::vector<std::byte*> data;
    for (int r = 0; r < size_; ++r) data.push_back(region.data(r));
    found->second = group_->ports().proxy().add_memory(std::move(data), region.bytes());
  }
  return found->second;
}

// Under mutex_. Waits until this rank's copies from and to it are complete.
void CudaCommunicatorImpl::forget_port_memory(const CudaRegion& region) {
  const auto found = port_memories_.find(&region);
  if (found == port_memories_.end()) return;
  group_->ports().proxy().remove(found->second, {});
  port_memories_.erase(found);
}

bool CudaCommunicatorImpl::is_registered(const void* data, std::size_t bytes) const {
  const std::lock_guard lock(mutex_);
  return registrations_.contains(data, bytes);
}

std::uint64_t CudaCommunicatorImpl::direct_calls() const noexcept {
  return direct_calls_.load(std::memory_order_relaxed);
}

}  // namespace tutti::cuda
