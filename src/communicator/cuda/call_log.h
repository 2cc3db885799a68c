// What a CUDA communicator has been asked to do, as far as the host knows: counts, the flight recorder, and the tickets
// by which it recognises its calls on the GPU.
//
// An eager call gets a ticket, a number that goes with its kernel. Each block writes the tickets of the call that it
// started and the one that it ended into the GPU's own memory, which costs a call nothing that it waits for. The host
// reads them only when somebody wants to see the record. A call that is being captured has none: it is recorded once,
// as captured, and its replays are not seen by the host; the GPU counts them (Metrics::device_calls).
//
// Times of calls are not measured: that would take two events a call.
//
// Thread rule: open() and issued() by one thread at a time (the communicator's mutex), all else from any thread at any
// time: whoever asks what hangs must not wait for a launch that does. Lock: mutex_ guards what changes; a leaf, not
// held while the GPU is read. Knows nothing of CUDA: tests run it over the kernels' bodies on the host.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>

#include "channel/cuda/device_world.h"
#include "communicator/flight_recorder.h"
#include "communicator/metrics_table.h"

namespace tutti::cuda {

// Which kernels a call runs in: they are ordered among their own kind.
enum class Lane { kCollectives, kMessages };

// A call that has been launched.
struct IssuedCall {
  CallRecord record;           // of a message: kCallSend or kCallRecv, its bytes as the count
  int peer = -1;               // of a message
  std::size_t bytes = 0;       // of this rank's block or message
  std::string_view algorithm;  // lives as long as the log
  std::chrono::milliseconds timeout{};
};

// How it was launched.
struct Launched {
  Lane lane = Lane::kCollectives;
  std::uint32_t ticket = 0;  // of its last kernel; 0: captured, or there was no kernel
  int blocks = 0;            // of its last kernel; 0: nothing was launched, so it is done
  bool captured = false;
  std::uint64_t stream = 0;
};

class CallLog {
 public:
  // Copies what the GPU keeps between calls; false if it cannot be read.
  using ReadState = std::function<bool(RankState&)>;

  // Remembers the last `entries` calls. `control` is the group's.
  CallLog(int rank, int size, int entries, std::uint64_t first_sequence, device::HostControl& control,
          ReadState read_state);

  // Before a launch that is not captured: its ticket. A `timeout` of zero is the group's.
  std::uint32_t open(std::chrono::milliseconds timeout) noexcept;
  void issued(const IssuedCall& call, const Launched& how);

  void count_error() noexcept;
  // Reads from the GPU.
  Metrics metrics() const;
  void reset_metrics() noexcept;
  // JSON, as FlightRecorder::dump. Reads from the GPU.
  std::string flight_record(const std::string& group);

 private:
  // A recorded call of which it is not known that it has ended.
  struct Pending {
    std::uint64_t id = 0;  // of the recorder
    std::uint32_t ticket = 0;
    int blocks = 0;
    bool started = false;
  };
  void follow(std::deque<Pending>& pending, const std::function<std::uint64_t(int)>& progress_of);
  void refresh();

  const int rank_, size_;
  const std::size_t most_pending_;
  const std::uint64_t first_sequence_;
  device::HostControl& control_;
  const ReadState read_state_;
  std::uint32_t last_ticket_ = 0;
  mutable std::mutex mutex_;
  MetricsTable metrics_;
  FlightRecorder recorder_;
  std::deque<Pending> collectives_, messages_;
};

// Tickets of the kernels of one call, none of which is captured. The last one has its own, by which the call's end is
// seen; those before it share one. So a call takes two places of deadlines at most, however many kernels it has.
//
// Thread rule: as CallLog::open().
class CallTickets {
 public:
  CallTickets(CallLog& log, std::chrono::milliseconds timeout) noexcept : log_(log), timeout_(timeout) {}

  // Of the kernel that is launched next.
  std::uint32_t next(bool last) noexcept {
    if (last) return log_.open(timeout_);
    if (shared_ == 0) shared_ = log_.open(timeout_);
    return shared_;
  }

 private:
  CallLog& log_;
  const std::chrono::milliseconds timeout_;
  std::uint32_t shared_ = 0;
};

}  // namespace tutti::cuda
