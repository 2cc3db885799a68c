#include "torchcomms/inbox.h"

#include <ATen/ops/empty.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <utility>

#include "aten/side_stream.h"
#include "base/registry.h"
#include "tutti/cuda/capture.h"

namespace tutti::torchcomms {
namespace {

std::vector<at::Tensor> only(at::Tensor tensor) { return {std::move(tensor)}; }

// One a device, for all windows of the process: what is placed is there when the copy returns. Never destroyed, since
// windows may be at exit.
c10::Stream placing_stream(c10::Device device) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const streams = new std::map<c10::DeviceIndex, face::SideStream>;
  const std::lock_guard<std::mutex> lock(*mutex);
  return streams->try_emplace(device.index(), device).first->second.get();
}

}  // namespace

Inbox::Inbox(std::shared_ptr<WindowGroup> group, int rank, int size, at::Tensor bytes, std::unique_ptr<face::Loan> loan,
             int tag)
    : group_(std::move(group)),
      rank_(rank),
      tag_(tag),
      bytes_(std::move(bytes)),
      loan_(std::move(loan)),
      peers_(static_cast<std::size_t>(size)) {
  for (std::size_t peer = 0; peer < peers_.size(); ++peer) {
    peers_[peer].last = c10::make_intrusive<Event>([this, peer] {
      return "tutti: tensor_deregister on communicator '" + group_->name() + "': rank " + std::to_string(peer) +
             " has not deregistered in time";
    });
    peers_[peer].told = taken_by(static_cast<int>(peer));
  }
}

void Inbox::open(bool by_host) {
  if (by_host && bytes_.is_cuda()) placing_ = placing_stream(bytes_.device());
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer != rank_) listen(peer);
  }
}

Inbox::CallPtr Inbox::send(int peer, const Words& words) {
  const WindowGroup::Use group(*group_);
  TORCH_CHECK(group, "tutti: communicator '", group_->name(), "' is gone");
  const at::Tensor notice = at::empty({static_cast<std::int64_t>(words.size())}, at::kLong);
  std::copy(words.begin(), words.end(), notice.data_ptr<std::int64_t>());
  auto tensors = only(notice);
  return group->send(tensors, peer, tag_);
}

// A call that raises leaves `being_sent_to`: what it has said is not whole, and no answer is to follow it.
template <class Send>
Inbox::CallPtr Inbox::unless_gone(int peer, const Send& send) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (to.gone) std::rethrow_exception(is_gone(peer));
    to.being_sent_to = true;
  }
  const CallPtr call = send();
  bool has_left = false;  // since
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    to.being_sent_to = false;
    has_left = to.gone;
  }
  if (has_left) answer(peer);
  return call;
}

Inbox::CallPtr Inbox::put(int peer, std::int64_t first, const at::Tensor& bytes) {
  return unless_gone(peer, [&] {
    send(peer, {kData, first, bytes.numel()});
    const WindowGroup::Use group(*group_);
    TORCH_CHECK(group, "tutti: communicator '", group_->name(), "' is gone");
    auto tensors = only(bytes);
    const CallPtr call = group->send(tensors, peer, tag_ + 1);
    EventPtr& put = peers_[static_cast<std::size_t>(peer)].put;
    put = call->isCompleted() ? nullptr : taken_by(peer);
    if (put != nullptr) end_with(call, put);
    return call;
  });
}

Inbox::CallPtr Inbox::signal(int peer) {
  if (peer != rank_) return unless_gone(peer, [&] { return send(peer, {kSignal, 0, 0}); });
  signalled(peer);
  return Event::ended();
}

void Inbox::send_last(int peer, Notice notice) {
  Peer& to = peers_[static_cast<std::size_t>(peer)];
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(to.last_is_sent, true)) return;
  }
  try {
    end_with(send(peer, {notice, 0, 0}), to.told);
  } catch (...) {
    to.told->end(std::current_exception());
    throw;
  }
}

// That it cannot be sent is no failure: who has left waits for it no longer than it can.
void Inbox::answer(int peer) noexcept {
  try {
    send_last(peer, kLast);
  } catch (const std::exception&) {
  }
}

void Inbox::end_with(const CallPtr& sent, const EventPtr& event) {
  sent->getFuture()->addCallback(
      [event](c10::ivalue::Future& future) { event->end(future.hasError() ? future.exception_ptr() : nullptr); });
}

Inbox::EventPtr Inbox::taken_by(int peer) const {
  return c10::make_intrusive<Event>([name = group_->name(), peer] {
    return "tutti: tensor_deregister on communicator '" + name + "': rank " + std::to_string(peer) +
           " has not taken what this rank has put in time";
  });
}

Inbox::CallPtr Inbox::next_signal(int peer, Milliseconds limit) {
  auto event = c10::make_intrusive<Event>([name = group_->name(), peer, limit] {
    return "tutti: wait_signal on communicator '" + name + "': rank " + std::to_string(peer) +
           " has not signalled within " + std::to_string(limit.count()) + " ms";
  });
  const std::lock_guard<std::mutex> lock(mutex_);
  Peer& from = peers_[static_cast<std::size_t>(peer)];
  while (!from.waiting.empty() && from.waiting.front()->isCompleted()) from.waiting.pop_front();  // late ones
  if (from.signals > 0) {
    --from.signals;
    event->end();
  } else if (failure_ != nullptr) {  // what has come before that is there
    std::rethrow_exception(failure_);
  } else if (from.gone) {
    std::rethrow_exception(is_gone(peer));
  } else {
    from.waiting.push_back(event);
  }
  return event;
}

void Inbox::close(Milliseconds limit) {
  const std::exception_ptr gone = std::make_exception_ptr(
      c10::DistBackendError({__func__, __FILE__, __LINE__},
                            "tutti: window of communicator '" + group_->name() + "': its tensor was deregistered"));
  // Unless all have said that they put no more, what is lent stays out of use.
  const std::unique_ptr<face::Loan> loan = std::move(loan_);
  if (group_ended()) return fail(gone);
  try {
    const auto over = std::chrono::steady_clock::now() + limit;
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer != rank_) send_last(peer, kLast);
    }
    const auto left = [over] {  // zero would be no limit
      using std::chrono::ceil;
      return std::max(ceil<Milliseconds>(over - std::chrono::steady_clock::now()), Milliseconds(1));
    };
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer != rank_) peers_[static_cast<std::size_t>(peer)].last->wait(left());
    }
    // A peer may have said so before it has taken what this rank has put.
    for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
      if (peer == rank_) continue;
      Peer& to = peers_[static_cast<std::size_t>(peer)];
      if (to.put != nullptr) to.put->wait(left());
      to.told->wait(left());
    }
  } catch (...) {
    fail(gone);
    throw;
  }
  fail(gone);
  if (!group_ended()) loan->end();
}

template <class Act>
void Inbox::with_each_peer(const Act& act) {
  for (int peer = 0; peer < static_cast<int>(peers_.size()); ++peer) {
    if (peer == rank_) continue;
    try {
      act(peer, peers_[static_cast<std::size_t>(peer)]);
    } catch (const c10::Error&) {  // late, or gone, too
    } catch (const std::bad_alloc&) {
    }
  }
}

void Inbox::say_gone() {
  with_each_peer([this](int peer, Peer& /*to*/) { send_last(peer, kGone); });
}

std::exception_ptr Inbox::await_answers(Deadline& deadline) {
  std::exception_ptr raised;
  with_each_peer([&](int /*peer*/, Peer& to) {
    for (const EventPtr& event : {to.put, to.told, to.last}) {
      const std::chrono::nanoseconds left(deadline.remaining_ns());
      if (event == nullptr) continue;
      try {
        event->wait(std::max(std::chrono::ceil<Milliseconds>(left), Milliseconds(1)));
      } catch (const c10::Error&) {
        throw;
      } catch (...) {
        if (raised == nullptr) raised = std::current_exception();
      }
    }
  });
  return raised;
}

void Inbox::require_there(int peer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (peers_[static_cast<std::size_t>(peer)].gone) std::rethrow_exception(is_gone(peer));
}

std::exception_ptr Inbox::is_gone(int peer) const {
  return std::make_exception_ptr(c10::DistBackendError({__func__, __FILE__, __LINE__},
                                                       "tutti: window of communicator '" + group_->name() + "': rank " +
                                                           std::to_string(peer) + " has finalized its communicator"));
}

void Inbox::took_leave(int peer) {
  std::deque<EventPtr> waiting;
  bool answers = false;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    from.gone = true;
    answers = !from.being_sent_to;  // else that call does
    waiting.swap(from.waiting);
  }
  for (const EventPtr& event : waiting) event->end(is_gone(peer));
  if (answers) answer(peer);
}

Inbox::CallPtr Inbox::receive(const at::Tensor& tensor, int peer, int tag) {
  const WindowGroup::Use group(*group_);
  if (!group) return nullptr;
  auto tensors = only(tensor);
  return group->recv(tensors, peer, tag);
}

// A loop, not a recursion: a peer may have sent any number of notices.
void Inbox::listen(int peer) {
  try {
    for (;;) {
      const at::Tensor notice = at::empty({static_cast<std::int64_t>(Words().size())}, at::kLong);
      const CallPtr call = receive(notice, peer, tag_);
      if (call == nullptr) return;
      if (!call->isCompleted()) {
        return after(call, [this, peer, notice] {
          if (accept(peer, notice)) listen(peer);
        });
      }
      call->wait();  // raises its error
      if (!accept(peer, notice)) return;
    }
  } catch (...) {
    fail(std::current_exception());
  }
}

void Inbox::after(const CallPtr& call, std::function<void()> next) {
  call->getFuture()->addCallback([self = shared_from_this(), next = std::move(next)](c10::ivalue::Future& future) {
    if (future.hasError()) return self->fail(future.exception_ptr());
    try {
      next();
    } catch (...) {
      self->fail(std::current_exception());
    }
  });
}

bool Inbox::accept(int peer, const at::Tensor& notice) {
  const std::int64_t* const words = notice.data_ptr<std::int64_t>();
  switch (words[0]) {
    case kData:
      return receive_data(peer, words[1], words[2]);
    case kSignal:
      signalled(peer);
      return true;
    case kGone:
      took_leave(peer);
      [[fallthrough]];
    default:
      peers_[static_cast<std::size_t>(peer)].last->end();
      return false;
  }
}

bool Inbox::receive_data(int peer, std::int64_t first, std::int64_t count) {
  TORCH_CHECK(first >= 0 && count >= 0 && first <= bytes_.numel() - count, "tutti: rank ", peer, " puts ", count,
              " bytes at ", first, " of a window of ", bytes_.numel());
  const at::Tensor target = bytes_.narrow(0, first, count);
  // Data for a GPU comes by way of the host. What comes too late is taken, so that its sender goes on, and dropped.
  const at::Tensor here = target.is_cpu() && !ended() ? target : at::empty({count}, at::kByte);
  const auto place = [this, target, here] {
    if (here.is_same(target) || ended()) return;
    const c10::InferenceMode off(false);
    const c10::StreamGuard guard(*placing_);
    at::Tensor into = target;
    // Returns when it is there. The program may be capturing.
    cuda_beside_captures([&] { into.copy_(here); });
  };
  const CallPtr call = receive(here, peer, tag_ + 1);
  if (call == nullptr) return false;
  if (call->isCompleted()) {
    call->wait();
    place();
    return true;
  }
  after(call, [this, peer, place] {
    place();
    listen(peer);
  });
  return false;
}

void Inbox::signalled(int peer) {
  EventPtr first;
  do {
    const std::lock_guard<std::mutex> lock(mutex_);
    Peer& from = peers_[static_cast<std::size_t>(peer)];
    if (from.waiting.empty()) {
      ++from.signals;
      return;
    }
    first = std::move(from.waiting.front());
    from.waiting.pop_front();
  } while (!first->end());  // its wait was late: the signal is the next one's
}

bool Inbox::ended() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_ != nullptr;
}

void Inbox::fail(std::exception_ptr error) {
  if (forked_child()) return;  // by a handler, within close(): a thread of the parent's may have had the lock
  std::vector<EventPtr> waiting;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (failure_ == nullptr) failure_ = error;
    for (Peer& peer : peers_) {
      waiting.insert(waiting.end(), peer.waiting.begin(), peer.waiting.end());
      waiting.push_back(peer.last);
      peer.waiting.clear();
    }
  }
  for (const EventPtr& event : waiting) event->end(error);
}

}  // namespace tutti::torchcomms
