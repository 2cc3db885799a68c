// The communicator behind include/tutti/communicator.h.
//
// Threads: collectives run on the calling thread when nothing is queued, else on the queue's thread; the message thread
// drives point-to-point calls that nobody waits for. Both threads start when first needed.
//
// Locks, in the order in which they may be taken:
//   run_mutex_      held while a collective runs; guards sequence_, call_, and the host channel's call
//   state failure_mutex_  guards failure_; a leaf
// The port, the queue and the works have leaf mutexes of their own.
//
// In a forked child every member raises before it takes a lock, or does nothing (abort, shutdown), and the destructor
// does not run (base/release.h).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "algorithm/collection.h"
#include "algorithm/plan/plan_files.h"
#include "algorithm/tuning/tuned.h"
#include "base/log.h"
#include "base/registry.h"
#include "base/turn.h"
#include "channel/host_channel.h"
#include "channel/message_port.h"
#include "communicator/algorithm_table.h"
#include "communicator/call_queue.h"
#include "communicator/failure.h"
#include "communicator/family.h"
#include "communicator/flight_recorder.h"
#include "communicator/formed_group.h"
#include "communicator/message_work.h"
#include "communicator/metrics_table.h"
#include "tutti/communicator.h"

namespace tutti {

// How long a shrink that waits `patience` for sign-ins may take from there on, and the first call of the new group.
std::chrono::milliseconds time_to_form(std::chrono::milliseconds patience) noexcept;

class CommunicatorImpl final : public Communicator,
                               public std::enable_shared_from_this<CommunicatorImpl>,
                               private MessageOwner,
                               private CallRunner {
 public:
  CommunicatorImpl(FormedGroup formed, int rank, int size, const CommunicatorOptions& options, const PlanFiles& plans,
                   const Tuning& tuning);
  ~CommunicatorImpl() override;

  // Communicator::create, which waits for the other ranks at most for `within`, whatever the group's timeout is.
  static std::shared_ptr<Communicator> form(Store& store, const std::string& id, int rank, int size,
                                            const CommunicatorOptions& options, std::chrono::milliseconds within);

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return options_.name; }
  const CommunicatorOptions& options() const noexcept override { return options_; }
  const std::vector<int>& host_ranks() const noexcept override { return formed_.ranks.beside(rank_); }
  int host_count() const noexcept override { return formed_.ranks.hosts(); }

  void check(const Call& call) const override;
  void run(const Call& call, std::chrono::milliseconds timeout) override;
  void set_algorithms(AlgorithmSet set) override;
  WorkPtr submit(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) override;

  void send(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
            std::chrono::milliseconds timeout) override;
  int recv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
           std::chrono::milliseconds timeout) override;
  WorkPtr isend(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) override;
  WorkPtr irecv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive) override;

  void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) override;
  void abort(const std::string& reason) noexcept override { abort_because(reason); }
  void abort_because(std::string_view reason) noexcept;
  void shutdown() noexcept override;
  void finish(Deadline& patience) noexcept;
  std::optional<Error> failure() const override;
  std::shared_ptr<Communicator> shrink(Store& store, const std::string& id, std::chrono::milliseconds timeout,
                                       std::vector<int>* members) override;

  // relaxed, here and where it is set: a changed timeout takes effect at some later call.
  std::chrono::milliseconds timeout() const noexcept override {
    return std::chrono::milliseconds(timeout_ms_.load(std::memory_order_relaxed));
  }
  void set_timeout(std::chrono::milliseconds timeout) override;
  // relaxed: a reader on another thread wants any recent value, and one that issues calls sees its own.
  std::uint64_t sequence() const noexcept override {
    return direct_.load(std::memory_order_relaxed) + queued_.load(std::memory_order_relaxed);
  }
  // How often the group has been split, the same on all ranks: a split is a call. relaxed: calls have an order.
  std::uint64_t next_split() noexcept { return splits_.fetch_add(1, std::memory_order_relaxed); }
  std::uint64_t splits() const noexcept { return splits_.load(std::memory_order_relaxed); }

  Metrics metrics() const override;
  void reset_metrics() noexcept override;
  std::string flight_record() const override;
  std::string explain(const Call& call) const override;

  // For what else goes between the ranks (group_bootstrap.h).
  MessagePort& port() const noexcept override { return *port_; }
  // What has become of a rank of this host that has died or given up, whether or not a call has met it. Waits for
  // nothing, and calls nobody back.
  std::optional<Error> lost() const;
  // Why messages to and from a peer are hopeless, as far as that is known without waiting: kPeerLost of one of this
  // host that has died, whatever else has failed.
  Outcome look_at(int peer) const noexcept;
  // Makes of what has become of a peer its cause: want of memory here, or, where the peer has told, whom it has lost in
  // turn. `context` gets what is known of it. May end messages, and calls back for them.
  void find_cause(Outcome& outcome, FailureContext& context) const;
  // What this rank has lacked for a connection with a peer, as a sentence's part; empty: nothing that is known.
  std::string want_here() const;
  // The group fails by what has become of a peer, as it would by its next call. `when`: how that is known, as the
  // beginning of a sentence that goes on with the peer.
  // `by_kin`: by a group of the family, which tells the others itself.
  void fail_by(Outcome outcome, const std::string& when, bool by_kin = false) noexcept;
  // Of a group that has been formed in the messages of another, which takes those `members` of it: from now on, what
  // one of them learns of a death, the other does. Before its first call. May throw std::bad_alloc.
  void join_family_of(const CommunicatorImpl& parent, const std::vector<int>& members);
  std::weak_ptr<void> alive() noexcept override { return weak_from_this(); }
  void throw_if_unusable() const;

 private:
  // A call that finds no memory before anything of it is sent is refused, and the group stays usable.
  template <class Act>
  decltype(auto) with_memory(const Act& act) const {
    try {
      return act();
    } catch (const std::bad_alloc&) {
      throw Error(refused_);
    }
  }

  // CallRunner: runs a queued call on the queue's thread.
  void run_queued(const Call& call, std::chrono::milliseconds timeout) override;

  // choice.cc
  void check_choice(const Call& call) const;
  UserAlgorithmPtr chosen_for(const Call& call) const;

  // collective.cc
  // The lock on run_mutex_. Throws Error(kTimeout) when `deadline` is over, and what a signal's handler does.
  TurnLock take_turn(std::string_view what, Deadline& deadline);
  // `numbered`: of a call of the queue, set once it has its number; null of others.
  void run_locked(const Call& call, std::chrono::milliseconds timeout, bool* numbered);
  // Takes what the call needs of memory in its course, by `algorithm` if that is known: a call that is refused here
  // leaves all ranks as they were. Any thread. Throws Error(kExhausted), std::bad_alloc.
  void reserve(const Call& call, const Algorithm* algorithm);
  WorkPtr push(const Call& call, std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive);
  void throw_if_running_here(const char* what) const;
  [[noreturn]] static void throw_running_here(const char* what);
  // How a call is to run, and how it did.
  struct Dispatch {
    std::shared_ptr<const Algorithm> chosen;  // by the caller or the program's selector; null: the library chooses
    const Algorithm* ran = nullptr;
    const char* refused = nullptr;  // why the chosen one cannot run after all, on all ranks alike
  };
  std::size_t multiplied_bytes(const Call& call) const noexcept;
  const Call& premultiplied(const Call& call) noexcept;
  Outcome dispatch(const Call& call, Dispatch& how) noexcept;
  Outcome announce(const Call& call, CallShape& shape) noexcept;
  Outcome announce_here() noexcept;
  Error call_failed(Outcome outcome) noexcept;
  void explain_failure(Outcome& outcome, FailureContext& context);
  Arena* arena_for(const Call& call) const noexcept;
  void lend_tensors(const Call& call, CallRecord& record) noexcept;
  void take_tensors_back(bool done) noexcept;
  bool lies_in_arena(const Call& call, int peer) const noexcept;
  Outcome check_block_sizes(const Call& call) noexcept;
  void publish_block_sizes(const Call& call) noexcept;
  void run_alone(const Call& call) const noexcept;
  // The hash of an uneven call of which all ranks have the same list of sizes, with that list in it.
  std::uint32_t with_common_sizes(const Call& call, std::uint32_t hash) const noexcept;
  void make_record(const Call& call, const UserAlgorithm* chosen, CallRecord& record) const noexcept;
  CallShape shape_of(const Call& call) const noexcept;

  // point_to_point.cc
  void check_message(const void* data, std::size_t count, int peer, std::uint64_t tag, bool any_source) const;
  int transfer(bool is_send, void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
               std::chrono::milliseconds timeout);
  WorkPtr start(bool is_send, void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                std::chrono::milliseconds timeout, std::shared_ptr<void> keep_alive);
  void wake_message_thread();
  // Fails the group for want of what a call needs.
  Error starved_by(const CallRecord& record, int peer, const std::exception& why) noexcept;
  void message_loop() noexcept;
  void throw_if_gone(int peer, const CallRecord& record, std::chrono::milliseconds timeout);
  // MessageOwner
  std::exception_ptr message_failed(Outcome outcome, const MessageOp& op,
                                    std::chrono::milliseconds timeout) noexcept override;
  void message_done(const MessageOp& op, std::uint64_t entry, std::int64_t total_ns) noexcept override;

  // shrink.cc
  std::shared_ptr<Communicator> shrink_telling(Store& store, const std::string& id, std::chrono::milliseconds timeout,
                                               std::vector<int>* members);

  // failing.cc
  // What HostChannel::check() says when this rank has found elsewhere that waiting is hopeless.
  bool blames_itself(Outcome outcome) const noexcept {
    return outcome.status == Status::kPeerFailed && outcome.peer == rank_;
  }
  Outcome want_behind(Outcome outcome) const noexcept;
  void trace_to_cause(Outcome& outcome, FailureContext& context) const;
  void publish(const Error& error) noexcept;
  Error poison(Outcome outcome, FailureContext& context) noexcept;
  void tell_failure(Outcome outcome, const FailureContext& context, bool to_tell) noexcept;
  void tell_kin(int lost, bool ended) noexcept;
  void say_left() noexcept;
  void throw_if_forked() const;
  Error parents_error() const;
  std::chrono::milliseconds effective(std::chrono::milliseconds timeout) const noexcept {
    return timeout.count() > 0 ? timeout : this->timeout();
  }

  const int rank_;
  const int size_;
  const CommunicatorOptions options_;
  const Logger logger_;
  // Made beforehand, for when there is no memory to make them with: a call was refused; the group has failed, or was
  // aborted, and more cannot be said.
  const Error refused_, starved_, aborted_;
  FormedGroup formed_;
  const GroupPlace place_;
  std::unique_ptr<MessagePort> port_;
  mutable AlgorithmTable algorithms_;  // see there for its threads
  std::atomic<std::int64_t> timeout_ms_;

  TurnMutex run_mutex_;
  std::uint64_t sequence_ = 0;            // the number of the last call that has begun; guarded by run_mutex_
  std::atomic<std::uint64_t> direct_{0};  // calls that their own threads have run; written under run_mutex_
  std::atomic<std::uint64_t> queued_{0};  // calls that have come into the queue
  CallState call_;
  CallContext context_{call_};
  std::array<std::span<std::byte>, 2> lent_;  // of the call under way: the mapped input and output
  Call factor_call_;                          // kPremulSum: the call on the multiplied input

  MetricsTable metrics_;
  std::mutex message_metrics_mutex_;  // point-to-point calls of several threads record one at a time; a leaf
  std::atomic<std::uint32_t> small_messages_{0};
  FlightRecorder recorder_;

  std::atomic<bool> failed_{false};  // release: publishes failure_; pairs with the acquire in throw_if_unusable()
  mutable std::mutex failure_mutex_;
  std::optional<Error> failure_;
  std::string abort_reason_;  // guarded by failure_mutex_

  CallQueue queue_;
  std::mutex message_thread_mutex_;  // guards starting the thread; a leaf
  std::condition_variable message_thread_wake_;
  std::thread message_thread_;
  std::atomic<bool> stopping_{false};
  OutstandingMessages outstanding_;
  std::atomic<std::uint64_t> monitored_barriers_{0};
  std::atomic<std::uint64_t> splits_{0};
  std::shared_ptr<Family> family_;  // set before the first call
  std::unique_ptr<ExitHook> exit_hook_;
};

}  // namespace tutti
