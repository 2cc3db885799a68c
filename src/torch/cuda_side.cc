#include "torch/cuda_side.h"

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <utility>

#include "torch/store_adapter.h"

namespace tutti::face {

CudaSide::CudaSide(c10::intrusive_ptr<c10d::Store> store, std::string id, int rank, int size, CudaOptions options)
    : store_(std::move(store)), id_(std::move(id)), rank_(rank), size_(size), options_(std::move(options)) {}

CudaLane CudaSide::make(c10::Device device, const std::string& id, int rank, int size,
                        const std::string& messages) const {
  CudaOptions options;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    options = options_;
  }
  options.device = device.index();
  if (!messages.empty()) options.name += ", messages " + messages;
  StoreAdapter adapter(store_);
  auto communicator = CudaCommunicator::create(adapter, id, rank, size, options);
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  // Of high priority: what others wait for goes before what only this rank computes.
  return {std::move(communicator), cuda.getStreamFromGlobalPool(device, /*isHighPriority=*/true)};
}

const CudaLane& CudaSide::checked(const CudaLane& lane, c10::Device device) {
  if (lane.communicator->device() == device.index()) return lane;
  throw_error(ErrorKind::kInvalidArgument,
              "this group's rank uses cuda:" + std::to_string(lane.communicator->device()) + ", not " + device.str() +
                  ": a rank of a group has one device");
}

const CudaLane& CudaSide::group(c10::Device device) {
  // acquire: pairs with the release below.
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return checked(*lane, device);
  const std::lock_guard<std::mutex> one_at_a_time(making_);
  if (const CudaLane* lane = made_group_.load(std::memory_order_acquire)) return checked(*lane, device);
  CudaLane lane = make(device, id_, rank_, size_, "");
  const std::lock_guard<std::mutex> lock(mutex_);
  const CudaLane& made = group_.emplace(std::move(lane));
  // release: publishes the lane to those who take no lock.
  made_group_.store(&made, std::memory_order_release);
  return made;
}

const CudaLane& CudaSide::pair(c10::Device device, int peer, bool send) {
  const Pair key{peer, send};
  const auto made = [&]() -> const CudaLane* {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = pairs_.find(key);
    return found != pairs_.end() ? &found->second : nullptr;
  };
  if (const CudaLane* lane = made()) return *lane;
  const std::lock_guard<std::mutex> one_at_a_time(making_);
  if (const CudaLane* lane = made()) return *lane;
  const int from = send ? rank_ : peer;
  const int to = send ? peer : rank_;
  const std::string direction = std::to_string(from) + ">" + std::to_string(to);
  CudaLane lane = make(device, id_ + "/" + direction, send ? 0 : 1, 2, direction);
  const std::lock_guard<std::mutex> lock(mutex_);
  return pairs_.emplace(key, std::move(lane)).first->second;
}

template <typename Visit>
void CudaSide::each(Visit&& visit) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (group_.has_value()) visit(*group_->communicator);
  for (const auto& [key, lane] : pairs_) visit(*lane.communicator);
}

// For what reads from the GPU: not under the mutex, which abort() takes.
std::vector<std::shared_ptr<CudaCommunicator>> CudaSide::communicators() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<CudaCommunicator>> all{group_.has_value() ? group_->communicator : nullptr};
  for (const auto& [key, lane] : pairs_) all.push_back(lane.communicator);
  return all;
}

Metrics CudaSide::metrics() const {
  Metrics all;
  for (const auto& communicator : communicators()) {
    if (communicator == nullptr) continue;
    const Metrics some = communicator->metrics();
    all.errors += some.errors;
    all.device_calls += some.device_calls;
    for (const MetricsRow& row : some.rows) {
      // Times are of nothing on a GPU: counts are all there is to add.
      const auto same = std::find_if(all.rows.begin(), all.rows.end(), [&](const MetricsRow& other) {
        return other.collective == row.collective && other.size_class == row.size_class &&
               other.algorithm == row.algorithm;
      });
      if (same == all.rows.end()) {
        all.rows.push_back(row);
      } else {
        same->calls += row.calls;
        same->bytes += row.bytes;
      }
    }
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

void CudaSide::order_after_calls(const c10::Stream& stream) const {
  const auto follow = [&](const CudaLane& lane) {
    c10::Event last(c10::DeviceType::CUDA);
    last.record(lane.stream);
    last.block(stream);
  };
  const std::lock_guard<std::mutex> lock(mutex_);
  if (group_.has_value()) follow(*group_);
  for (const auto& [key, lane] : pairs_) follow(lane);
}

std::optional<Error> CudaSide::failure() const {
  std::optional<Error> first;
  each([&](const CudaCommunicator& communicator) {
    if (!first.has_value()) first = communicator.failure();
  });
  return first;
}

void CudaSide::abort(const std::string& reason) noexcept {
  each([&](CudaCommunicator& communicator) { communicator.abort(reason); });
}

void CudaSide::set_timeout(std::chrono::milliseconds timeout) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    options_.timeout = timeout;
  }
  each([&](CudaCommunicator& communicator) { communicator.set_timeout(timeout); });
}

std::uint64_t CudaSide::sequence() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return group_.has_value() ? group_->communicator->sequence() : 0;
}

}  // namespace tutti::face
