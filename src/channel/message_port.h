// Messages between the ranks of one communicator: matching by (peer, tag, order) over any mix of links.
//
// Protocol, over each link's byte stream: frames with a fixed header. A message up to kEagerBytes travels with its
// header and is kept in memory if no receive is posted. A larger one announces itself, and its payload is sent when the
// receiver has matched it, in the order of the receiver's grants: so an unreceived message never blocks another.
//
// The receiver compares the sender's CallRecord with its own before it writes anything; on a difference the receive
// ends with kMismatch, the sender is told and its op ends with kMismatch too. If that op has ended already, the oldest
// posted op or else the next one ends so, and its `record` becomes that of the refused message.
//
// Collectives that cross hosts use the port with tags of their own (kCollectiveTag), so they never meet a user's.
//
// Thread rule: any thread may call any member. One mutex guards all state; it is never held while a thread sleeps.
// Whoever waits drives the engine. Lock order: of others only the transports' and their streams' are taken under this
// mutex; of the waker only ring() is called.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/outcome.h"
#include "channel/call_record.h"
#include "transport/link.h"

struct pollfd;

namespace tutti {

inline constexpr std::uint64_t kCollectiveTag = std::uint64_t{1} << 63;
// Up to here a message is less than what waiting for a grant costs. Bursts of longer ones would gain as much, but leave
// a connection under bbr with a wrong idea of the network.
inline constexpr std::size_t kEagerBytes = 32768;

// Where an op stands inside the engine.
enum class MessagePhase : std::uint8_t {
  kNone,
  kStart,      // send: queued, nothing written
  kWriting,    // send: its first frame is being written
  kAnnounced,  // send: announced, waiting for the grant
  kGranted,    // send: payload going out
  kLocal,      // send to ourselves, waiting for its receive
  kPosted,     // receive: not matched
  kFilling,    // receive: an eager payload is being read into it
  kClaimed,    // receive: matched to an eager message that is still arriving elsewhere
  kIncoming,   // receive: granted, payload coming in
  kFinishing,  // ended; on_done is being called
};

// One send or receive. Owned by the caller, not moved, and alive until done() or until cancel() returned.
struct MessageOp {
  enum class State : std::uint8_t { kIdle, kPosted, kDone };

  MessageOp() = default;
  MessageOp(const MessageOp&) = delete;
  MessageOp& operator=(const MessageOp&) = delete;

  // acquire: outcome, source and the payload are there; pairs with the release in the engine's last touch of an op.
  bool done() const noexcept { return state.load(std::memory_order_acquire) == State::kDone; }

  std::atomic<State> state{State::kIdle};
  Outcome outcome;
  int source = -1;    // receives: who sent it
  CallRecord record;  // what this side said
  CallRecord remote;  // on kMismatch: what the other side said
  // Called once, without the port's lock, by the driving thread, when outcome and payload are there and just before
  // done() is true: it must neither free the op nor wait (see channel/afterwards.h). Not after cancel() took it back.
  std::function<void(MessageOp&)> on_done;

  // The port's own.
  bool is_send = false;
  MessagePhase phase = MessagePhase::kNone;
  int peer = -1;
  std::uint64_t tag = 0;
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t moved = 0;
  std::uint64_t id = 0;       // sends and matched receives: the sender's number of the message
  std::uint64_t order = 0;    // of posting, on this rank
  MessageOp* next = nullptr;  // the queue that the phase names
  MessageOp* prev = nullptr;
  MessageOp* newer = nullptr;  // all unfinished ops, by `order`
  MessageOp* older = nullptr;
};

// Where a driving thread sleeps and learns of failures: the host's doorbell, sockets, or a virtual clock.
class PortWaker {
 public:
  virtual ~PortWaker() = default;
  // What a sleeping thread is asked.
  class Sleeper {
   public:
    // After sleep has been announced. If false, it does not sleep: there is something to do, or `fds` is not what is to
    // be waited for any more.
    virtual bool may_sleep() noexcept = 0;
    // After a sleep that nobody has ended, which is still announced: whether something is there for which it should
    // have been woken. What this process has done about it is over; ranks of the host may be about to ring.
    virtual bool has_missed() noexcept = 0;

   protected:
    ~Sleeper() = default;
  };
  // Sleeps until a doorbell rings, a descriptor of `fds` is ready, `nudge()` is called, or `timeout_ns` passed. Whether
  // a wake-up was lost.
  virtual bool sleep(const std::vector<struct pollfd>& fds, std::int64_t timeout_ns, Sleeper& sleeper) noexcept = 0;
  virtual void nudge() noexcept = 0;  // wakes this rank's own sleepers
  // After writing into (or making room in) a link that has no poll_fd. Called under the port's lock: takes none.
  virtual void ring(int peer) noexcept = 0;
  // Around that, rings included. Likewise.
  virtual void begin_publishing() noexcept {}
  virtual void end_publishing() noexcept {}
  // Why waiting for `peer` (kAnySource: for anyone) is hopeless; kOk when it is not. Cheap: asked once a slice.
  virtual Outcome check(int peer) noexcept = 0;
};

class MessagePort {
 public:
  // The transport that serves each peer (null for this rank itself); all outlive the port, and so does the waker.
  // `spin_ns`: how long a wait polls before it sleeps.
  MessagePort(int rank, int size, std::vector<Transport*> transport_of_peer, PortWaker* waker, std::int64_t spin_ns);
  ~MessagePort();
  MessagePort(const MessagePort&) = delete;

  // Never block. The data stays valid until the op is done or cancelled. A send is done when its data has left: taken
  // by the link or kept by the port, not necessarily received.
  void post_send(MessageOp& op, int peer, std::uint64_t tag, const void* data, std::size_t bytes,
                 const CallRecord& record) noexcept;
  // `peer` may be kAnySource (-1).
  void post_recv(MessageOp& op, int peer, std::uint64_t tag, void* data, std::size_t bytes,
                 const CallRecord& record) noexcept;

  // Drives until the op is done, the deadline passed (kTimeout) or a handler of a signal ended the wait (kAborted): the
  // op then stays posted. `goes_on`: the wait goes on with one that has timed out, so it sleeps where that one slept,
  // and does not poll anew.
  Outcome wait(MessageOp& op, Deadline& deadline, bool goes_on = false) noexcept;

  // Drives once without blocking; true if anything moved.
  bool progress() noexcept;

  // Drives, sleeping while nothing moves, until `stop` has returned true once, or a handler of a signal has ended the
  // wait of this thread. Who makes `stop` true nudges the waker afterwards. `told`, if given: whether ranks of this
  // host have made it true, which ring within HostChannel::Publishing.
  void drive(const std::function<bool()>& stop, const std::function<bool()>& told = {}) noexcept;

  // Takes an unfinished op back: afterwards the port never touches it or its data again. The op is done() with
  // kAborted, the peer's side of a message that has begun ends with kPeerFailed. Not to be called from on_done.
  void cancel(MessageOp& op) noexcept;

  // The same for a receive of which nothing has come yet. Else false: it is done, or will be when the rest has come.
  bool withdraw(MessageOp& op) noexcept;

  // Ends every posted and later op with `outcome` and wakes all waiters. Nothing is written or read any more. The peers
  // are told, with `reason` where the group has been aborted, and where the outcome is a peer's failure with what that
  // peer has said of it, the `cause`.
  void fail(Outcome outcome, std::string_view reason = {}, Outcome cause = {}) noexcept;

  // What a peer of another host has said of its failure, itself or through others.
  struct Said {
    Outcome outcome;     // ok if it has said nothing
    std::string reason;  // of an abort; may be cut off
  };
  Said said_by(int peer) const;

  // The rank of the first message kept without a receive whose tag is from `first` to below `end` and whose record's
  // hash is another than `hash`, and that record; -1: there is none.
  int find_stranger(std::uint64_t first, std::uint64_t end, std::uint32_t hash, CallRecord& record) const noexcept;

  // Why messages to and from a peer are hopeless, as far as that is known without waiting; kOk when they are not.
  Outcome look(int peer) noexcept;

  // How this port failed, or else whom of the ranks that it has links to it has lost, or has heard to have failed: of
  // several, what explains most. kOk otherwise; a rank that has left in good order is no loss, and one that has failed
  // none for three seconds, in which this one may find out why itself. As far as the port has been driven. Calls back
  // for what ends.
  Outcome lost() noexcept;

  // The process ends, and with it this rank's part: peers of other hosts that have a link to it are told before this
  // returns. Nothing is ended or called back here.
  void say_left() noexcept;

  // Posted and unfinished ops.
  int pending() const noexcept;

  // Waits so far that ended by their time slice, though what they waited for was there and whoever had brought it had
  // looked for sleepers since: wake-ups that were lost. What comes by a descriptor is the system's to tell.
  std::uint64_t rescued_waits() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tutti
