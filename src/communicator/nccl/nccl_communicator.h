// Groups on GPUs that the kernels of Tutti's own do not serve, because their ranks are on several hosts or too many:
// their calls are NCCL's. What Tutti adds is what every group has: a limit of time for each call, an end within a
// second when a rank dies, errors that name group, rank and call, records.
//
// NCCL's calls are made by the caller, one after the other. What ends them is done beside them by a thread of its own:
// ncclCommAbort() may take time, and is what NCCL gives to end calls that wait inside it.
//
// Two ranks that exchange something for the first time connect, and NCCL's call waits for that. Of a pair for messages
// that is done when it is made, so that a send waits for no receive.
//
// Deaths: once a call has been on the device for a quarter of a second, a thread asks as often what has become of the
// other ranks, until no call waits so long any more (Bootstrap::watch()).
//
// Deadlines: a call's time counts from when the device has come to it, by a mark before and one behind it; of one that
// does not come back from NCCL, from when it went in. look() finds what is over, ten times a second.
//
// Locks: Life::order is held while NCCL is called, which may wait for a peer the first time that two ranks exchange
// anything. So nothing that reports or ends takes it but for a second: failure(), look(), abort() and the records take
// state_, a leaf.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/turn_lock.h"
#include "bootstrap/bootstrap.h"
#include "channel/call_record.h"
#include "communicator/flight_recorder.h"
#include "communicator/metrics_table.h"
#include "communicator/nccl/library.h"
#include "communicator/nccl/steps.h"
#include "communicator/nccl/stream_work.h"
#include "tutti/stream_communicator.h"

namespace tutti {

class NcclCommunicator final : public StreamCommunicator {
 public:
  // Collective. `why`: what Tutti's kernels do not serve. Throws as join_nccl().
  NcclCommunicator(const BootstrapPtr& bootstrap, const DeviceOptions& options, std::shared_ptr<StreamWork> work,
                   const NcclLibrary& nccl, std::string why);
  // Waits for the calls under way, as long as they may take, and ten seconds for NCCL to end.
  ~NcclCommunicator() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return options_.name; }
  int device() const noexcept override { return work_->device(); }

  void check(const Call& call) const override;
  void run(const Call& call, DeviceStream stream, std::chrono::milliseconds timeout) override;
  void exchange(const std::vector<DeviceMessage>& messages, DeviceStream stream,
                std::chrono::milliseconds timeout) override;
  // Plans and kernels of a program are not run: the calls stay NCCL's. One that a call names is refused.
  void set_algorithms(AlgorithmSet /*set*/) override {}
  void prepare(const UserAlgorithmPtr& algorithm) override;
  // No rank maps another's.
  std::vector<std::shared_ptr<DeviceRegion>> register_memory(const std::vector<DeviceRange>& ranges) override;

  void follow(std::function<std::optional<Error>()> lost) override;
  void look() noexcept override;
  std::optional<Error> failure() const override;
  void abort(const std::string& reason) noexcept override;

  DeviceStream own_stream() override { return work_->own_stream(); }
  bool is_capturing(DeviceStream stream) const override { return work_->is_capturing(stream); }
  void synchronize(DeviceStream stream) override;

  std::chrono::milliseconds timeout() const noexcept override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::uint64_t sequence() const noexcept override { return sequence_.load(std::memory_order_relaxed); }
  std::string explain(const Call& call) const override;
  std::string candidates(const Call& call) const override;
  Metrics metrics() const override;
  void reset_metrics() noexcept override;
  std::string flight_record() const override;

 private:
  using Clock = std::chrono::steady_clock;
  // NCCL's communicator, and what ends it: apart from this object, which need not wait for that.
  struct Life {
    Life(const NcclLibrary& library, std::shared_ptr<StreamWork> of_device)
        : nccl(library), work(std::move(of_device)) {}
    // Ends what is under way, whoever is inside NCCL. Once.
    void abort() noexcept;
    // Takes the communicator back when nothing of it is under way.
    void destroy() noexcept;

    const NcclLibrary& nccl;
    const std::shared_ptr<StreamWork> work;
    TurnLock order;
    // Null: ended. release by who makes or takes it, acquire by who uses it: under `order`, but for an abort() that has
    // not got that within a second.
    std::atomic<ncclComm_t> comm{nullptr};
    // release, before NCCL is told; acquire by who comes back from NCCL: then the communicator is gone.
    std::atomic<bool> ending{false};
  };
  // What the records say of a call, or of each message of a batch.
  struct Entry {
    CallRecord record;
    int peer = -1;
    std::size_t bytes = 0;
  };
  // A call on its way through the device.
  struct Pending {
    std::vector<std::uint64_t> ids;  // of the recorder
    CallRecord record;
    std::chrono::milliseconds timeout{};
    StreamWork::Mark begin, end;
    std::optional<Clock::time_point> began;
  };

  // What `issue` enqueues by NCCL, with its marks and records. Throws the group's failure.
  void enqueue(const std::vector<Entry>& entries, DeviceStream stream, std::chrono::milliseconds timeout,
               const std::function<void(ncclComm_t)>& issue);
  void begin(Pending& call, const std::vector<Entry>& entries, DeviceStream stream, bool captured);
  void issue(ncclComm_t comm, const NcclCall& made, const Call& call, DeviceStream stream);
  void step(ncclComm_t comm, const NcclCall& made, ncclRedOp_t op, const NcclStep& step, DeviceStream stream);
  // All that `calls` asks of NCCL, at once.
  void grouped(const std::function<void()>& calls);
  void require(ncclResult_t result, const char* function) const;

  // What the thread that looks out for lost ranks does, and whether it is to begin.
  void look_out();
  bool waits_for_long() const;
  void throw_if_failed() const;
  // The group is over, by the first reason; what waits is ended by a thread of its own.
  void fail(ErrorKind kind, const std::string& text) noexcept;
  // Under state_: takes out what has ended, and says what is over its time.
  std::optional<std::string> overdue() const;
  std::string late(const Pending& call, const char* what) const;
  std::string named() const;

  const int rank_, size_;
  DeviceOptions options_;
  const std::shared_ptr<StreamWork> work_;
  const NcclLibrary& nccl_;
  const std::string why_;
  const std::shared_ptr<Life> life_;
  const BootstrapPtr bootstrap_;
  std::shared_ptr<std::byte> word_;         // of barriers
  std::atomic<std::uint64_t> sequence_{0};  // relaxed: a count
  std::atomic<bool> captured_{false};       // relaxed: whether any call was, whose graph may be replayed

  mutable std::mutex state_;  // guards the members below; a leaf
  std::chrono::milliseconds timeout_;
  bool failed_ = false;
  ErrorKind kind_ = ErrorKind::kAborted;
  std::string text_;  // empty: no memory was left for it
  std::function<std::optional<Error>()> lost_;
  std::optional<Pending> inside_;  // the call that is in NCCL now: `began` when it went in
  std::thread lookout_;            // joinable from its beginning to the next one's
  bool looking_out_ = false, leaving_ = false;
  std::condition_variable changed_;  // leaving_
  MetricsTable metrics_;
  // Whoever asks moves them on.
  mutable std::deque<Pending> pending_;  // in the order of issue
  mutable std::uint64_t ended_ = 0;
  mutable FlightRecorder recorder_;
};

}  // namespace tutti
