// The port around the engine: the lock, waiting, sleeping and callbacks.
#include "channel/message_port.h"

#include <sched.h>

#include <algorithm>
#include <mutex>

#include "base/interruption.h"
#include "base/registry.h"
#include "base/spin.h"
#include "channel/afterwards.h"
#include "channel/message_engine.h"
#include "channel/rescued_waits.h"

namespace tutti {
namespace {

// A sleeper looks up at least this often, to ask whether whom it waits for still lives.
constexpr std::int64_t kSliceNs = 100'000'000;

// A busy port asks all the same, once in so many passes.
constexpr std::uint32_t kCheckEvery = 4096;

// Of this thread, in the order in which the ops ended.
thread_local Afterwards* first_afterwards = nullptr;
thread_local Afterwards* last_afterwards = nullptr;
// How many times this thread is calling on_done: one that fails its port ends others there, before those of the pass
// that it belongs to are all done.
thread_local int ending_ops = 0;

}  // namespace

void Afterwards::add(Afterwards& what) noexcept {
  what.next_ = nullptr;
  (first_afterwards == nullptr ? first_afterwards : last_afterwards->next_) = &what;
  last_afterwards = &what;
}

void Afterwards::run_here() noexcept {
  while (ending_ops == 0 && first_afterwards != nullptr) {
    Afterwards* const what = first_afterwards;
    first_afterwards = what->next_;
    what->run_afterwards();  // may add others, and run those that are left
  }
}

struct MessagePort::State {
  State(int rank, std::vector<Transport*> transports, PortWaker* w, std::int64_t spin)
      : engine(rank, std::move(transports), w), waker(w), spin_ns(spin) {}

  // Runs `act(engine)` under the lock, then what it caused: callbacks, and a nudge for sleepers that must look again.
  template <class Act>
  void locked(Act&& act) noexcept {
    std::unique_lock lock(mutex);
    run(lock, act);
  }

  template <class Act>
  void run(std::unique_lock<std::mutex>& lock, Act&& act) noexcept {
    try {
      act(engine);
    } catch (...) {  // no memory: nothing can be promised of what was under way
      engine.fail({Status::kExhausted, -1});
    }
    bool nudge = engine.take_news() && sleepers > 0;
    OpQueue callbacks = engine.take_callbacks();
    const bool owes = nudge || !callbacks.empty();
    // relaxed: under the lock; a sleeper that takes it afterwards sees it.
    if (owes) owing.fetch_add(1, std::memory_order_relaxed);
    lock.unlock();
    if (!callbacks.empty()) {
      call_back(callbacks);
      lock.lock();
      nudge = sleepers > 0;  // the ops have become done only now
      lock.unlock();
    }
    if (nudge) waker->nudge();
    // release: after the nudge; pairs with the acquire in Sleeper::has_missed().
    if (owes) owing.fetch_sub(1, std::memory_order_release);
    Afterwards::run_here();  // the last: one may drop the port
  }

  static void call_back(OpQueue& ops) noexcept {
    ++ending_ops;
    while (MessageOp* op = ops.pop_front()) {
      op->on_done(*op);
      // release: our last touch; pairs with the acquire in MessageOp::done.
      op->state.store(MessageOp::State::kDone, std::memory_order_release);
    }
    --ending_ops;
  }

  bool drive(int prefer) noexcept {
    bool moved = false;
    locked([&](MessageEngine& e) { moved = e.pass(prefer); });
    return moved;
  }

  // The same if no other thread is at it.
  bool try_drive(int prefer) noexcept {
    std::unique_lock lock(mutex, std::try_to_lock);
    if (!lock.owns_lock()) return false;
    bool moved = false;
    run(lock, [&](MessageEngine& e) { moved = e.pass(prefer); });
    return moved;
  }

  // Ends the ops whose waiting is hopeless.
  void check() noexcept {
    std::vector<int> peers;
    locked([&](MessageEngine& e) {
      e.check_links();
      e.awaited(peers);
    });
    for (const int peer : peers) {
      const Outcome outcome = waker->check(peer);
      if (!outcome.ok()) locked([&](MessageEngine& e) { e.give_up(peer, outcome); });
    }
  }

  // What one thread sleeps for: `still_idle` is asked before, the others after.
  class Sleeper final : public PortWaker::Sleeper {
   public:
    Sleeper(State& state, std::uint64_t number, const std::function<bool()>& still_idle, const MessageOp* op,
            const std::function<bool()>& told) noexcept
        : state_(state), number_(number), still_idle_(still_idle), op_(op), told_(told) {}

    // A nudge that comes before the waker counts us as asleep is nobody's: a set that has changed by then is found
    // here.
    bool may_sleep() noexcept override {
      if (!still_idle_()) return false;
      const std::lock_guard lock(state_.mutex);
      return state_.engine.poll_set_number() == number_;
    }
    bool has_missed() noexcept override {
      const bool told = told_ && told_();
      const std::lock_guard lock(state_.mutex);
      // acquire: pairs with the release in run(): who has done something there has nudged, too.
      if (state_.owing.load(std::memory_order_acquire) != 0) return false;
      return told || (op_ != nullptr && op_->done()) || state_.engine.poll_set_number() != number_ ||
             state_.engine.has_input();
    }

   private:
    State& state_;
    const std::uint64_t number_;
    const std::function<bool()>& still_idle_;
    const MessageOp* const op_;
    const std::function<bool()>& told_;
  };

  void sleep(std::int64_t timeout_ns, const std::function<bool()>& still_idle, const MessageOp* op,
             const std::function<bool()>& told = {}) noexcept {
    std::vector<pollfd> fds;
    std::uint64_t number = 0;
    {
      std::unique_lock lock(mutex);
      try {
        number = engine.poll_set(fds);
      } catch (...) {  // as in run()
        return run(lock, [](MessageEngine& e) { e.fail({Status::kExhausted, -1}); });
      }
      ++sleepers;  // from here on, news about what we poll nudge us
    }
    Sleeper sleeper(*this, number, still_idle, op, told);
    if (waker->sleep(fds, timeout_ns, sleeper)) {
      rescued_waits.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count, nothing else depends on it
      count_rescued_wait();
    }
    const std::lock_guard lock(mutex);
    --sleepers;
  }

  std::mutex mutex;  // guards engine and sleepers
  MessageEngine engine;
  int sleepers = 0;
  std::atomic<int> owing{0};  // threads between what they have done and the nudge that follows from it
  std::atomic<std::uint64_t> rescued_waits{0};
  PortWaker* const waker;
  const std::int64_t spin_ns;
  std::atomic<std::uint32_t> idle_calls{0};
};

MessagePort::MessagePort(int rank, int size, std::vector<Transport*> transport_of_peer, PortWaker* waker,
                         std::int64_t spin_ns) {
  transport_of_peer.resize(static_cast<std::size_t>(size));
  state_ = std::make_unique<State>(rank, std::move(transport_of_peer), waker, spin_ns);
}

MessagePort::~MessagePort() { fail({Status::kAborted, -1}); }

void MessagePort::post_send(MessageOp& op, int peer, std::uint64_t tag, const void* data, std::size_t bytes,
                            const CallRecord& record) noexcept {
  op.is_send = true;
  op.peer = peer;
  op.tag = tag;
  op.data = static_cast<std::byte*>(const_cast<void*>(data));
  op.bytes = bytes;
  op.record = record;
  state_->locked([&](MessageEngine& e) { e.post_send(op); });
}

void MessagePort::post_recv(MessageOp& op, int peer, std::uint64_t tag, void* data, std::size_t bytes,
                            const CallRecord& record) noexcept {
  op.is_send = false;
  op.peer = peer;
  op.tag = tag;
  op.data = static_cast<std::byte*>(data);
  op.bytes = bytes;
  op.record = record;
  state_->locked([&](MessageEngine& e) { e.post_recv(op); });
}

Outcome MessagePort::wait(MessageOp& op, Deadline& deadline, bool goes_on) noexcept {
  State& s = *state_;
  const int prefer = op.peer;
  const std::function<bool()> still_idle = [&s, &op] { return !op.done() && !s.drive(-1) && !op.done(); };
  constexpr Outcome interrupted{Status::kAborted, -1};
  Spin spin(goes_on ? 0 : s.spin_ns);
  std::uint32_t passes = 0;
  std::uint32_t wakes = 0;
  while (!op.done()) {
    const bool moved = s.try_drive(prefer);
    if (op.done()) break;
    if (++passes % kCheckEvery == 0) {
      s.check();
      if (!go_on_waiting()) return op.done() ? op.outcome : interrupted;
      if (deadline.expired()) return op.done() ? op.outcome : Outcome{Status::kTimeout, op.peer};
    }
    if (moved) {
      spin.restart();
      continue;
    }
    if (spin.goes_on()) {
      spin.pause();
      continue;
    }
    s.check();
    const std::int64_t left = deadline.remaining_ns();
    if (op.done()) break;
    if (left <= 0) return {Status::kTimeout, op.peer};
    s.sleep(std::min(left, kSliceNs), still_idle, &op);
    // What has come goes first: to ask an interpreter may take long. One that is woken all the time asks now and then.
    if (must_ask() && s.try_drive(prefer) && ++wakes % 16 != 0) continue;
    if (!go_on_waiting()) return op.done() ? op.outcome : interrupted;
  }
  return op.outcome;
}

bool MessagePort::progress() noexcept {
  const bool moved = state_->drive(-1);
  // relaxed: counts only how seldom to ask; no other memory depends on it.
  if (!moved && state_->idle_calls.fetch_add(1, std::memory_order_relaxed) % 64 == 63) state_->check();
  return moved;
}

void MessagePort::drive(const std::function<bool()>& stop, const std::function<bool()>& told) noexcept {
  State& s = *state_;
  bool stopped = false;  // `stop` is not asked again: it may say so but once
  const auto look = [&s, &stop, &stopped] {
    stopped = stop();
    return !stopped && !s.drive(-1);
  };
  const std::function<bool()> still_idle = std::cref(look);  // which takes no memory
  Spin spin(s.spin_ns);
  std::uint32_t passes = 0;
  while (!stopped && !stop()) {
    const bool moved = s.try_drive(-1);
    if (++passes % kCheckEvery == 0) s.check();
    if (moved) {
      spin.restart();
      continue;
    }
    if (pending() > 0 && spin.goes_on()) {
      spin.pause();
      continue;
    }
    s.check();
    s.sleep(kSliceNs, still_idle, nullptr, told);
    if (!stopped && !go_on_waiting()) return;
  }
}

void MessagePort::cancel(MessageOp& op) noexcept {
  if (forked_child()) return;  // the links are the parent's, and nobody drives the port
  bool ended = false;
  state_->locked([&](MessageEngine& e) {
    // relaxed: the state is changed under this lock, except to kDone after a callback, for which we wait below.
    ended =
        op.state.load(std::memory_order_relaxed) != MessageOp::State::kPosted || op.phase == MessagePhase::kFinishing;
    if (!ended) e.retract(op, {Status::kAborted, -1}, true);
  });
  // relaxed: an op that was never posted is nobody's but the caller's.
  if (op.state.load(std::memory_order_relaxed) == MessageOp::State::kIdle) return;
  while (ended && !op.done()) sched_yield();  // another thread is in its on_done
}

bool MessagePort::withdraw(MessageOp& op) noexcept {
  if (forked_child()) return true;
  bool withdrawn = false;
  state_->locked([&](MessageEngine& e) {
    withdrawn = op.phase == MessagePhase::kPosted;
    if (withdrawn) e.retract(op, {Status::kAborted, -1}, true);
  });
  return withdrawn;
}

void MessagePort::fail(Outcome outcome, std::string_view reason, Outcome cause) noexcept {
  state_->locked([&](MessageEngine& e) { e.fail(outcome, reason, cause); });
}

int MessagePort::find_stranger(std::uint64_t first, std::uint64_t end, std::uint32_t hash,
                               CallRecord& record) const noexcept {
  const std::lock_guard lock(state_->mutex);
  const Arrival* const found = state_->engine.find_stranger(first, end, hash);
  if (found == nullptr) return -1;
  record = found->record;
  return found->peer;
}

MessagePort::Said MessagePort::said_by(int peer) const {
  const std::lock_guard lock(state_->mutex);
  return state_->engine.said_by(peer);
}

Outcome MessagePort::look(int peer) noexcept {
  Outcome dead;
  state_->locked([&](MessageEngine& e) {
    e.check_links();
    dead = e.dead(peer);
  });
  return dead.ok() ? state_->waker->check(peer) : dead;
}

Outcome MessagePort::lost() noexcept {
  Outcome lost;
  state_->locked([&](MessageEngine& e) {
    e.check_links();
    lost = e.lost();
  });
  return lost;
}

void MessagePort::say_left() noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->engine.say_left();
}

std::uint64_t MessagePort::rescued_waits() const noexcept {
  return state_->rescued_waits.load(std::memory_order_relaxed);  // relaxed: a count
}

int MessagePort::pending() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->engine.pending();
}

}  // namespace tutti
