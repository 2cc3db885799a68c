// Point-to-point calls that nobody waits for yet.
//
// A MessageWork owns its operation and stays alive, by the list of outstanding messages, until the operation has ended:
// its caller may drop the handle at once. Thread rule: any thread.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "base/clock.h"
#include "channel/afterwards.h"
#include "channel/message_port.h"
#include "communicator/call_queue.h"

namespace tutti {

// What a message needs of its communicator. It outlives all works: the communicator ends them before it goes.
class MessageOwner {
 public:
  virtual ~MessageOwner() = default;
  virtual MessagePort& port() const noexcept = 0;
  // To be locked by whoever waits at the port; null once the owner's end has begun.
  virtual std::weak_ptr<void> alive() noexcept = 0;
  // Poisons the communicator and gives the Error that says why.
  virtual std::exception_ptr message_failed(Outcome outcome, const MessageOp& op,
                                            std::chrono::milliseconds timeout) noexcept = 0;
  virtual void message_done(const MessageOp& op, std::uint64_t entry, std::int64_t total_ns) noexcept = 0;
};

class MessageWork final : public WorkState, public std::enable_shared_from_this<MessageWork>, private Afterwards {
 public:
  // `entry` names the call in the flight recorder.
  MessageWork(MessageOwner& owner, std::uint64_t entry, std::chrono::milliseconds timeout,
              std::shared_ptr<void> keep_alive);

  void wait(std::chrono::milliseconds timeout) override;

  MessageOp& op() noexcept { return op_; }
  // Called by the port, once, just before the operation is done; the port touches the operation once more after it.
  void complete() noexcept;
  bool released() const noexcept { return op_.done(); }
  // Its deadline has passed, and it has not ended.
  bool late() noexcept;
  // Ends the operation with kTimeout if so.
  void expire_if_late() noexcept;

 private:
  // The callbacks, when all messages that ended with this one are done: they may wait for those.
  void run_afterwards() noexcept override;

  MessageOwner& owner_;
  const std::weak_ptr<void> group_;  // the owner's
  MessageOp op_;
  std::mutex deadline_mutex_;  // guards deadline_: several threads may wait; a leaf
  Deadline deadline_;
  std::int64_t start_ns_;
  std::uint64_t entry_;
  std::shared_ptr<void> keep_alive_;
  std::shared_ptr<MessageWork> self_;  // while its callbacks are still to run
};

// Keeps works alive until the port has let go of them; ended ones are dropped when the list is next used.
// Only add() takes memory. Thread rule: any thread; of others only the works' mutexes are taken under the mutex.
class OutstandingMessages {
 public:
  void add(std::shared_ptr<MessageWork> work);
  bool empty() noexcept;
  void expire_late() noexcept;

 private:
  using Works = std::list<std::shared_ptr<MessageWork>>;
  // Takes out what the port has let go of, to be destroyed without the lock.
  Works take_released() noexcept;

  std::mutex mutex_;
  Works works_;
};

}  // namespace tutti
