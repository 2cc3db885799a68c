// What a rank receives for one registered window: data of put(), signals, and that a peer is done with it.
//
// Protocol, between each pair, over a group that has no other messages: notices of three words (kind, first byte,
// bytes) under the window's tag, and behind a put's notice the bytes under the next one. One receive of each peer is
// posted at a time, and after a notice of data the next one only when the data lies in the window: so what a peer says
// takes effect in the order in which it said it, and a signal tells that all that was put before it is there. A peer's
// last notice is kLast, or kGone where its communicator ends before it has deregistered: no receive is posted then.
// kGone is answered with kLast, behind all that was put and signalled till then, unless a last notice is on its way
// already: who leaves waits for it, so that nothing is under way to it when its group ends.
//
// Once close() has returned or raised, or the window has failed, what a late peer still puts is received into memory of
// its own and dropped; only a receive that was under way then still ends in the window.
//
// Ownership: receives under way hold the inbox, and it the window's memory, until the communicator ends the group.
// Thread rule: any thread; receives end on threads of the library, which run no Python here.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "aten/peer_tensors.h"
#include "base/clock.h"
#include "torchcomms/event.h"
#include "torchcomms/window_group.h"

namespace tutti::torchcomms {

class Inbox final : public std::enable_shared_from_this<Inbox> {
 public:
  enum Notice : std::int64_t { kData, kSignal, kLast, kGone };
  using CallPtr = c10::intrusive_ptr<c10d::Work>;
  using Milliseconds = std::chrono::milliseconds;

  // `bytes`: the window's memory as bytes, which they keep alive. `tag`: this and the next one are the window's.
  // `loan`: of that memory to the ranks that map it. It is taken back by close(), or when this goes.
  Inbox(std::shared_ptr<WindowGroup> group, int rank, int size, at::Tensor bytes, std::unique_ptr<face::Loan> loan,
        int tag);

  // Posts the first receive of each peer. `by_host`: so does data come, and what is for a GPU is placed on a stream
  // apart from the program's (SideStream says how far): a kernel there may wait for a peer that goes on only when its
  // data is taken here.
  void open(bool by_host);

  // Sends to another rank's inbox. `bytes` are contiguous, of a CPU; the work keeps them alive.
  CallPtr put(int peer, std::int64_t first, const at::Tensor& bytes);
  CallPtr signal(int peer);

  // The next signal of `peer` that no earlier call has asked for. One that a wait has given up is there for the next.
  CallPtr next_signal(int peer, Milliseconds limit);

  // Tells the peers that this rank is done, and waits until all have said so and have taken what this rank has put,
  // unless the group has ended. Signals that are awaited never come. Ends the window also where it raises.
  void close(Milliseconds limit);

  // This rank's communicator is about to end: tells the peers, who expect nothing more of it.
  void say_gone();
  // Behind that: until they have answered, and all that they have sent is here. Those that do not in time take its end
  // for a failure. Gives what a handler of a signal has raised first; it goes on waiting.
  std::exception_ptr await_answers(Deadline& deadline);
  // Throws if that peer's communicator has ended.
  void require_there(int peer);

  // Ends the window, and what waits for it. The first error counts.
  void fail(std::exception_ptr error);

  // The communicator has ended the group, or has got another one.
  bool group_ended() const { return group_->group() == nullptr; }
  // Throws if it has ended.
  Group group() const { return group_->in_use(); }

  // This rank's own memory, as bytes.
  const at::Tensor& bytes() const noexcept { return bytes_; }

 private:
  using EventPtr = c10::intrusive_ptr<Event>;
  using Words = std::array<std::int64_t, 3>;
  struct Peer {
    std::int64_t signals = 0;  // that nobody has asked for
    std::deque<EventPtr> waiting;
    EventPtr last;               // ends with its last notice
    EventPtr told;               // ends when this rank's last notice has gone to it
    bool gone = false;           // its communicator has ended
    bool being_sent_to = false;  // by a call of this rank's
    bool last_is_sent = false;   // this rank's last notice, or that is about to be
    EventPtr put;                // ends with the last data for it, or null; the caller's alone
  };

  CallPtr send(int peer, const Words& words);
  // Runs `send`, which sends to that peer, and answers what has come of its end meanwhile behind that. Throws if its
  // communicator had ended before.
  template <class Send>
  CallPtr unless_gone(int peer, const Send& send);
  // Once: nothing goes to that peer any more.
  void send_last(int peer, Notice notice);
  void answer(int peer) noexcept;
  // Whatever becomes of one.
  template <class Act>
  void with_each_peer(const Act& act);
  // Ends with `sent`, and keeps nothing of it.
  static void end_with(const CallPtr& sent, const EventPtr& event);
  EventPtr taken_by(int peer) const;
  // Null when the group has ended.
  CallPtr receive(const at::Tensor& tensor, int peer, int tag);
  void listen(int peer);
  // Takes a notice. False: it goes on when data has come, or not at all.
  bool accept(int peer, const at::Tensor& notice);
  bool receive_data(int peer, std::int64_t first, std::int64_t count);
  void signalled(int peer);
  void took_leave(int peer);
  std::exception_ptr is_gone(int peer) const;
  // The memory is no longer the window's.
  bool ended();
  // Runs `next` when `call` has ended well, on the thread that ends it; else fail().
  void after(const CallPtr& call, std::function<void()> next);

  const std::shared_ptr<WindowGroup> group_;
  const int rank_;
  const int tag_;
  const at::Tensor bytes_;
  std::unique_ptr<face::Loan> loan_;    // the caller's alone
  std::optional<c10::Stream> placing_;  // on which data for a GPU is placed
  std::mutex mutex_;                    // guards the members below; a leaf
  std::vector<Peer> peers_;
  std::exception_ptr failure_;  // set: the window has ended
};

}  // namespace tutti::torchcomms
