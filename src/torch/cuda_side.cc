#include "torch/cuda_side.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "base/registry.h"
#include "communicator/device_entry.h"

namespace tutti::face {

CudaSide::CudaSide(Communicator& group, CudaOptions options)
    : bootstraps_(group), rank_(group.rank()), size_(group.size()), options_(std::move(options)) {}

// All pairs give up before the destructor of the first waits for its thread.
// A forked child has none of the threads, and leaves everything as it is.
CudaSide::~CudaSide() {
  if (forked_child()) {
    static_cast<void>(new std::map<Pair, CudaPair>(std::move(pairs_)));
    return;
  }
  shutdown();
}

void CudaSide::shutdown() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto& [key, pair] : pairs_) pair.give_up("the group was destroyed");
}

namespace {

// Of high priority: what others wait for goes before what only this rank computes.
c10::Stream side_stream(c10::Device device) {
  return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStreamFromGlobalPool(device, /*isHighPriority=*/true);
}

[[noreturn]] void refuse_second_device(c10::DeviceIndex used, c10::Device device) {
  throw_error(ErrorKind::kInvalidArgument, "this group's rank uses cuda:" + std::to_string(used) + ", not " +
                                               device.str() + ": a rank of a group has one device");
}

}  // namespace

CudaLane CudaSide::make(c10::Device device) {
  CudaOptions options;
  AlgorithmSet algorithms;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    options = options_;
    algorithms = algorithms_;
  }
  options.device = device.index();
  // A try that has failed has left messages behind.
  const std::string id = tries_ == 0 ? "cuda" : "cuda, try " + std::to_string(tries_ + 1);
  ++tries_;
  auto communicator = make_communicator("cuda", bootstraps_.among(all_ranks(size_), id), options);
  if (!algorithms.empty()) communicator->set_algorithms(std::move(algorithms));
  return {std::move(communicator), side_stream(device)};
}

const CudaLane& CudaSide::checked(const CudaLane& lane, c10::Device device) {
  if (lane.communicator->device() == device.index()) return lane;
  refuse_second_device(static_cast<c10::DeviceIndex>(lane.communicator->device()), device);
}

const CudaLane& CudaSide::group(c10::Device device) {
  // acquire: pairs with the release below.
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return checked(*lane, device);
  const std::lock_guard<std::mutex> one_at_a_time(making_);
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return checked(*lane, device);
  CudaLane lane = make(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  const CudaLane& made = group_.emplace(std::move(lane));
  // release: publishes the lane to those who take no lock.
  made_group_.store(&made, std::memory_order_release);
  return made;
}

void CudaSide::set_algorithms(AlgorithmSet set) {
  const std::lock_guard<std::mutex> one_at_a_time(making_);
  std::shared_ptr<CudaCommunicator> made;
  AlgorithmSet before = set;  // goes without the mutex: a program's function may take locks of its own as it does
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::swap(algorithms_, before);
    if (group_.has_value()) made = group_->communicator;
  }
  if (made == nullptr) return;
  made->set_algorithms(std::move(set));
}

CudaPair& CudaSide::pair(c10::Device device, int peer, bool send) {
  const auto find = [&]() -> CudaPair* {
    const auto found = pairs_.find({peer, send});
    if (found == pairs_.end()) return nullptr;
    const c10::Device used = found->second.stream().device();
    if (used != device) refuse_second_device(used.index(), device);
    return &found->second;
  };
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (CudaPair* pair = find()) return *pair;
    if (aborted_.has_value()) throw_error(ErrorKind::kAborted, "the group was aborted: " + *aborted_);
  }
  CudaPair::refuse_capture(device, peer);
  // Not under the lock, which abort() takes: the first use of the pool makes streams.
  const c10::Stream stream = side_stream(device);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (CudaPair* pair = find()) return *pair;
  if (aborted_.has_value()) throw_error(ErrorKind::kAborted, "the group was aborted: " + *aborted_);
  const int from = send ? rank_ : peer;
  const int to = send ? peer : rank_;
  const std::string direction = std::to_string(from) + ">" + std::to_string(to);
  CudaPair::Plan plan{bootstraps_, "cuda, messages " + direction, from, to, options_};
  plan.options.device = device.index();
  plan.options.messages_only = true;
  plan.options.name += ", messages " + direction;
  return pairs_.try_emplace({peer, send}, std::move(plan), stream).first->second;
}

template <typename Visit>
void CudaSide::each(Visit&& visit) const {
  for (const auto& communicator : communicators()) {
    if (communicator != nullptr) visit(*communicator);
  }
}

// The first is the group's, null while there is none. Not visited under the mutex, which abort() takes.
std::vector<std::shared_ptr<CudaCommunicator>> CudaSide::communicators() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<CudaCommunicator>> all{group_.has_value() ? group_->communicator : nullptr};
  for (const auto& [key, pair] : pairs_) {
    if (auto communicator = pair.communicator()) all.push_back(std::move(communicator));
  }
  return all;
}

Metrics CudaSide::metrics() const {
  Metrics all;
  for (const auto& communicator : communicators()) {
    if (communicator != nullptr) add_counts(all, communicator->metrics());
  }
  return all;
}

void CudaSide::reset_metrics() noexcept {
  each([](CudaCommunicator& communicator) { communicator.reset_metrics(); });
}

std::vector<std::string> CudaSide::flight_records() const {
  std::vector<std::string> records;
  for (const auto& communicator : communicators()) {
    records.push_back(communicator != nullptr ? communicator->flight_record() : std::string());
  }
  return records;
}

bool CudaSide::in_use() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_.has_value() || !pairs_.empty();
}

// Messages that are still queued hold their tensors, so nobody asks for an order after them.
void CudaSide::order_after_calls(const c10::Stream& stream) const {
  const auto follow = [&](const c10::Stream& side) {
    c10::Event last(c10::DeviceType::CUDA);
    last.record(side);
    last.block(stream);
  };
  std::vector<c10::Stream> streams;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (group_.has_value()) streams.push_back(group_->stream);
    for (const auto& [key, pair] : pairs_) streams.push_back(pair.stream());
  }
  for (const c10::Stream& side : streams) follow(side);
}

std::optional<Error> CudaSide::failure() const {
  std::optional<Error> first;
  each([&](const CudaCommunicator& communicator) {
    if (!first.has_value()) first = communicator.failure();
  });
  return first;
}

void CudaSide::abort(const std::string& reason) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!aborted_.has_value()) aborted_ = reason;
  if (group_.has_value()) group_->communicator->abort(reason);
  for (auto& [key, pair] : pairs_) pair.abort(reason);
}

void CudaSide::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(mutex_);
  options_.timeout = timeout;
  if (group_.has_value()) group_->communicator->set_timeout(timeout);
  for (auto& [key, pair] : pairs_) pair.set_timeout(timeout);
}

std::uint64_t CudaSide::sequence() const {
  // acquire: pairs with the release in group().
  const CudaLane* lane = made_group_.load(std::memory_order_acquire);
  return lane != nullptr ? lane->communicator->sequence() : 0;
}

}  // namespace tutti::face
