#include "communicator/cuda/call_log.h"

#include <algorithm>

namespace tutti::cuda {
namespace {

// Tickets wrap: `a` was given at `b`'s time or before.
bool not_after(std::uint32_t a, std::uint32_t b) noexcept { return static_cast<std::int32_t>(b - a) >= 0; }

}  // namespace

CallLog::CallLog(int rank, int size, int entries, std::uint64_t first_sequence, device::HostControl& control,
                 ReadState read_state)
    : rank_(rank),
      size_(size),
      most_pending_(static_cast<std::size_t>(std::max(entries, 0))),
      first_sequence_(first_sequence),
      control_(control),
      read_state_(std::move(read_state)),
      recorder_(entries, FlightRecorder::Of::kCuda) {}

std::uint32_t CallLog::open(std::chrono::milliseconds timeout) noexcept {
  if (++last_ticket_ == 0) ++last_ticket_;
  if (timeout.count() > 0) {
    const auto ms = static_cast<std::uint64_t>(std::min<std::int64_t>(timeout.count(), 0xffffffff));
    // relaxed: the launch that follows orders it.
    device::store_relaxed(&control_.call_timeouts[last_ticket_ % device::kTimedCalls],
                          std::uint64_t{last_ticket_} << 32 | ms);
  }
  return last_ticket_;
}

void CallLog::count_error() noexcept {
  const std::lock_guard lock(mutex_);
  metrics_.count_error();
}

void CallLog::reset_metrics() noexcept {
  const std::lock_guard lock(mutex_);
  metrics_.reset();
}

void CallLog::issued(const IssuedCall& call, const Launched& how) {
  const std::lock_guard lock(mutex_);
  metrics_.record(call.record.call, call.bytes, call.algorithm, -1, 0);
  const bool done = how.blocks == 0;
  // A captured call has no ticket, so its own deadline is nowhere: it follows the group's.
  const std::int64_t timeout_ms =
      call.timeout.count() > 0 && !how.captured
          ? call.timeout.count()
          : static_cast<std::int64_t>(device::load_relaxed(&control_.timeout_ns) / 1'000'000);
  const std::uint64_t id = recorder_.add(call.record, call.peer,
                                         done ? FlightRecorder::State::kCompleted : FlightRecorder::State::kScheduled,
                                         timeout_ms, {how.stream, how.captured});
  if (done || how.ticket == 0 || most_pending_ == 0) return;
  std::deque<Pending>& pending = how.lane == Lane::kCollectives ? collectives_ : messages_;
  pending.push_back({id, how.ticket, how.blocks, false});
  if (pending.size() > most_pending_) pending.pop_front();
}

// Moves the entries on that the GPU has started or ended since.
void CallLog::follow(std::deque<Pending>& pending, const std::function<std::uint64_t(int)>& progress_of) {
  // acquire: the record of the failure is complete.
  const bool failed = device::load_acquire(&control_.code) != 0;
  const auto culprit = static_cast<std::uint32_t>(device::load_relaxed(&control_.ticket));
  while (!pending.empty()) {
    Pending& call = pending.front();
    if (failed && culprit != 0 && not_after(culprit, call.ticket)) {
      if (culprit == call.ticket) recorder_.update(call.id, FlightRecorder::State::kFailed);
      return;  // what comes after it returns at once
    }
    bool started = false, ended = true;
    for (int b = 0; b < call.blocks; ++b) {
      const std::uint64_t progress = progress_of(b);
      const auto last_started = static_cast<std::uint32_t>(progress >> 32);
      const auto last_ended = static_cast<std::uint32_t>(progress);
      started = started || (last_started != 0 && not_after(call.ticket, last_started));
      ended = ended && last_started != 0 && not_after(call.ticket, last_ended);
    }
    if (started && !call.started) recorder_.update(call.id, FlightRecorder::State::kStarted);
    call.started = call.started || started;
    if (!ended) return;  // in order, so nothing behind it has started
    recorder_.update(call.id, FlightRecorder::State::kCompleted);
    pending.pop_front();
  }
}

void CallLog::refresh() {
  {
    const std::lock_guard lock(mutex_);
    if (collectives_.empty() && messages_.empty()) return;
  }
  RankState state;
  if (!read_state_(state)) return;
  // What was issued since is not in `state`, and stays scheduled.
  const std::lock_guard lock(mutex_);
  follow(collectives_, [&](int block) { return *progress_of(state, block); });
  follow(messages_, [&](int block) { return state.message_progress[block]; });
}

Metrics CallLog::metrics() const {
  Metrics metrics;
  {
    const std::lock_guard lock(mutex_);
    metrics = metrics_.snapshot();
  }
  for (MetricsRow& row : metrics.rows) row.device = "cuda";
  RankState state;
  if (read_state_(state)) metrics.device_calls = state.blocks[0].sequence - first_sequence_;
  return metrics;
}

std::string CallLog::flight_record(const std::string& group) {
  refresh();
  return recorder_.dump(group, rank_, size_);
}

}  // namespace tutti::cuda
