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
// other ranks, until none waits so long any more (Bootstrap::watch()). A rank is lost to this one where a call goes on
// waiting after that. NCCL may notice first, without a name: then the thread has two seconds to find one.
//
// Deadlines: a call's time counts from when the device has come to it, by a mark before and one behind it; of one that
// does not come back from NCCL, from when it went in and nothing lay before it. look() finds what is over, ten times a
// second. What a replayed graph does is not seen: it has no limit, and no death ends it.
//
// A call that this rank alone does not make, whatever the reason, would pair its next one with the others' last: it
// ends the group. What check() refuses is refused before that.
//
// Locks: Life::order is held while NCCL is called, which may wait for a peer. So what reports or ends takes it but for
// a second: failure(), look(), abort() and the records take state_, a leaf, and CallsUnderWay's.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/turn.h"
#include "bootstrap/bootstrap.h"
#include "communicator/nccl/calls_under_way.h"
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

  void look() noexcept override;
  bool must_be_looked_at() const noexcept override { return true; }
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
  using Entries = std::vector<CallsUnderWay::Entry>;
  // NCCL's communicator, and what ends it: apart from this object, which waits for that only so long.
  struct Life {
    Life(const NcclLibrary& library, std::shared_ptr<StreamWork> of_device)
        : nccl(library), work(std::move(of_device)) {}
    // Ends what is under way, whoever is inside NCCL. Once.
    void abort() noexcept;
    // Takes the communicator back when nothing of it is under way.
    void destroy() noexcept;

    const NcclLibrary& nccl;
    const std::shared_ptr<StreamWork> work;
    TurnMutex order;
    // Null: ended. release by who makes or takes it, acquire by who uses it: under `order`, but for an abort() that has
    // not got that within a second.
    std::atomic<ncclComm_t> comm{nullptr};
    // release, before NCCL is told; acquire by who comes back from NCCL: then the communicator is gone.
    std::atomic<bool> ending{false};
    std::shared_ptr<std::byte> word;  // of barriers, and of a pair's first message: goes when NCCL has ended
    // Of the end, whichever it is.
    std::mutex mutex;  // guards `over`; a leaf
    std::condition_variable changed;
    bool over = false;

   private:
    void ended() noexcept;
  };

  // What `issue` enqueues by NCCL, with its marks and records. Throws the group's failure. NCCL keeps its own kernels
  // in order across streams; kInOrder does so with the copies around them, of calls that are not captured.
  enum class Order { kInOrder, kAsNccl };
  void enqueue(const Entries& entries, DeviceStream stream, std::chrono::milliseconds timeout, Order order,
               const std::function<void(ncclComm_t)>& issue);
  void issue(ncclComm_t comm, const NcclCall& made, const Call& call, DeviceStream stream);
  void step(ncclComm_t comm, const NcclCall& made, ncclRedOp_t op, const NcclStep& step, DeviceStream stream);
  // All that `calls` asks of NCCL, at once.
  void grouped(const std::function<void()>& calls);
  // Throws where the communicator is about to end: it may be gone.
  void require_there() const;
  void require(ncclResult_t result, const char* function) const;

  // What the thread that looks out for lost ranks does. Whether it goes on.
  bool look_out(std::optional<Error>& lost, std::uint64_t& waited);
  void start_looking_out();
  // NCCL has said that something is wrong.
  void hear(const Error& said);
  void throw_if_failed() const;
  // The group is over, by the first reason; what waits is ended by a thread of its own.
  void fail(ErrorKind kind, const std::string& text) noexcept;
  std::string named() const;

  const int rank_, size_;
  DeviceOptions options_;
  const std::shared_ptr<StreamWork> work_;
  const NcclLibrary& nccl_;
  const std::string why_;
  const std::shared_ptr<Life> life_;
  const BootstrapPtr bootstrap_;
  std::atomic<std::uint64_t> sequence_{0};  // relaxed: a count
  std::atomic<bool> captured_{false};       // relaxed: whether any call was, whose graph may be there yet
  mutable CallsUnderWay calls_;             // whoever asks moves it on
  StreamWork::Mark behind_;                 // the last call in order; under life_->order

  mutable std::mutex state_;  // guards the members below; a leaf
  std::chrono::milliseconds timeout_;
  bool failed_ = false;
  ErrorKind kind_ = ErrorKind::kAborted;
  std::string text_;           // empty: no memory was left for it
  std::optional<Error> said_;  // by NCCL, of nobody by name
  Clock::time_point said_at_;
  std::thread lookout_;  // joinable from its beginning to the next one's
  bool looking_out_ = false, leaving_ = false;
  std::condition_variable changed_;  // leaving_
};

}  // namespace tutti
