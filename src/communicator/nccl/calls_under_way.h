// The calls of a group on NCCL, from when they go into NCCL to when the device has passed them: what is late, what
// waits, and what the records say.
//
// Thread rule: enter() and leave() by who holds the turn to call NCCL, all else from any thread. Lock: mutex_, a leaf;
// the device is asked without it.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "channel/call_record.h"
#include "communicator/flight_recorder.h"
#include "communicator/metrics_table.h"
#include "communicator/nccl/stream_work.h"

namespace tutti {

class CallsUnderWay {
 public:
  using Clock = std::chrono::steady_clock;

  // What the records say of a call, or of each message of a batch.
  struct Entry {
    CallRecord record;
    int peer = -1;
    std::size_t bytes = 0;
  };
  // A call that waits, or is late.
  struct Waiting {
    std::uint64_t number = 0;  // of the call, from 1
    CallRecord record;
    std::chrono::milliseconds timeout{};
    bool inside = false;  // it has not come back from NCCL
  };

  // Remembers the last `entries` calls.
  CallsUnderWay(StreamWork& work, int entries) : work_(work), recorder_(entries, FlightRecorder::Of::kCuda) {}

  // A call, `what` to people, goes into NCCL, behind `begin`; null: it is captured, and only recorded.
  void enter(const CallRecord& what, const std::vector<Entry>& entries, std::chrono::milliseconds timeout,
             StreamWork::Mark begin, DeviceStream stream);
  // It has come back, and `end` lies behind what it has enqueued; null: it is captured.
  void leave(StreamWork::Mark end);
  // It has not enqueued what it should.
  void leave_failed();
  // The group has failed, and with it all that is under way.
  void fail();

  // Asks the device, and takes out what has ended. Throws nothing but for want of memory.
  void settle();
  bool none() const;
  // As of the last settle(): the call that has waited for so long on the device, or inside NCCL with nothing before it.
  std::optional<Waiting> waiting(std::chrono::milliseconds long_enough) const { return after(long_enough); }
  // That which has waited as long as it may.
  std::optional<Waiting> late() const { return after(std::nullopt); }

  Metrics metrics();
  void reset_metrics();
  std::string dump(const std::string& group, int rank, int size);

 private:
  struct Call {
    std::uint64_t number = 0;
    std::vector<std::uint64_t> ids;  // of the recorder
    CallRecord record;
    std::chrono::milliseconds timeout{};
    StreamWork::Mark begin, end;
    std::optional<Clock::time_point> began;
  };
  // mutex_ is held. The call that is waited for, and since when; null: none.
  const Call* first(Clock::time_point& since) const;
  // That call, if it has waited for `long_enough`; without a value, for its own limit.
  std::optional<Waiting> after(std::optional<std::chrono::milliseconds> long_enough) const;
  void update(const Call& call, FlightRecorder::State state);

  StreamWork& work_;
  mutable std::mutex mutex_;    // guards the members below
  std::optional<Call> inside_;  // `began` when it went in
  std::deque<Call> pending_;    // in the order of issue
  Clock::time_point idle_since_ = Clock::now();
  std::uint64_t entered_ = 0, ended_ = 0;
  MetricsTable metrics_;
  FlightRecorder recorder_;
};

}  // namespace tutti
