#include "communicator/nccl/calls_under_way.h"

#include <algorithm>
#include <utility>

namespace tutti {
namespace {

constexpr std::string_view kAlgorithm = "nccl";

}  // namespace

void CallsUnderWay::update(const Call& call, FlightRecorder::State state) {
  for (const std::uint64_t id : call.ids) recorder_.update(id, state);
}

void CallsUnderWay::enter(const CallRecord& what, const std::vector<Entry>& entries, std::chrono::milliseconds timeout,
                          StreamWork::Mark begin, DeviceStream stream) {
  const std::lock_guard lock(mutex_);
  Call call{++entered_, {}, what, timeout, std::move(begin), nullptr, Clock::now()};
  const bool captured = call.begin == nullptr;
  for (const Entry& entry : entries) {
    metrics_.record(entry.record.call, entry.bytes, kAlgorithm, -1, 0);
    call.ids.push_back(recorder_.add(entry.record, entry.peer, FlightRecorder::State::kScheduled, timeout.count(),
                                     {reinterpret_cast<std::uintptr_t>(stream), captured}));
  }
  inside_ = std::move(call);
}

void CallsUnderWay::leave(StreamWork::Mark end) {
  const std::lock_guard lock(mutex_);
  if (end != nullptr) {
    inside_->began.reset();
    inside_->end = std::move(end);
    pending_.push_back(std::move(*inside_));
  }
  inside_.reset();
}

void CallsUnderWay::leave_failed() {
  const std::lock_guard lock(mutex_);
  metrics_.count_error();
  if (inside_) update(*inside_, FlightRecorder::State::kFailed);
  inside_.reset();
}

void CallsUnderWay::fail() {
  const std::lock_guard lock(mutex_);
  metrics_.count_error();
  for (const Call& call : pending_) update(call, FlightRecorder::State::kFailed);
  pending_.clear();
}

void CallsUnderWay::settle() {
  for (;;) {
    StreamWork::Mark begin, end;
    {
      const std::lock_guard lock(mutex_);
      if (pending_.empty()) return;
      end = pending_.front().end;
      if (!pending_.front().began) begin = pending_.front().begin;
    }
    const bool ended = work_.reached(end);
    const bool began = begin != nullptr && (ended || work_.reached(begin));
    const std::lock_guard lock(mutex_);
    if (pending_.empty() || pending_.front().end != end) continue;  // another thread was faster
    Call& call = pending_.front();
    if (began && !call.began) {
      call.began = Clock::now();
      update(call, FlightRecorder::State::kStarted);
    }
    if (!ended) return;  // in order, so nothing behind it has
    update(call, FlightRecorder::State::kCompleted);
    ++ended_;
    pending_.pop_front();
    if (pending_.empty()) idle_since_ = Clock::now();
  }
}

bool CallsUnderWay::none() const {
  const std::lock_guard lock(mutex_);
  return !inside_ && pending_.empty();
}

// What is inside NCCL behind other calls may wait for nothing but room in the device's queue.
const CallsUnderWay::Call* CallsUnderWay::first(Clock::time_point& since) const {
  if (!pending_.empty()) {
    if (!pending_.front().began) return nullptr;
    since = *pending_.front().began;
    return &pending_.front();
  }
  if (!inside_) return nullptr;
  since = std::max(*inside_->began, idle_since_);
  return &*inside_;
}

std::optional<CallsUnderWay::Waiting> CallsUnderWay::after(std::optional<std::chrono::milliseconds> long_enough) const {
  const std::lock_guard lock(mutex_);
  Clock::time_point since;
  const Call* const call = first(since);
  if (call == nullptr || Clock::now() - since < long_enough.value_or(call->timeout)) return std::nullopt;
  return Waiting{call->number, call->record, call->timeout, call->end == nullptr};
}

Metrics CallsUnderWay::metrics() {
  settle();
  const std::lock_guard lock(mutex_);
  Metrics metrics = metrics_.snapshot();
  for (MetricsRow& row : metrics.rows) row.device = "cuda";
  metrics.device_calls = ended_;
  return metrics;
}

void CallsUnderWay::reset_metrics() {
  const std::lock_guard lock(mutex_);
  metrics_.reset();
}

std::string CallsUnderWay::dump(const std::string& group, int rank, int size) {
  settle();
  return recorder_.dump(group, rank, size);
}

}  // namespace tutti
