// How a group ends at an endpoint, and what is said of it to those who do not know yet.
#include <algorithm>
#include <new>
#include <thread>
#include <utility>

#include "transport/tcp/endpoint.h"
#include "transport/tcp/retries.h"

namespace tutti::tcp {
namespace {

constexpr std::size_t kMostDeparted = 256;

}  // namespace

// For want of memory: what is half done is given up.
void Endpoint::starve() noexcept {
  logger_.error("tcp transport: no memory for connections that are being made");
  const std::lock_guard lock(mutex_);
  for (Member* const member : members_) {
    if (member->closed) continue;
    for (;;) {  // what they have asked for, which the turn may not have come to
      int peer = -1;
      {
        const std::lock_guard members_lock(member->mutex);
        if (member->wanted.empty()) break;
        peer = member->wanted.back();
        member->wanted.pop_back();
      }
      if (member->at(peer).state == Member::Peer::State::kIdle) starve(*member, peer);
    }
    for (int peer = 0; peer < member->options.size; ++peer) {
      const Member::Peer::State state = member->at(peer).state;
      if (state == Member::Peer::State::kDialing || state == Member::Peer::State::kResting) starve(*member, peer);
    }
  }
  if (admitting_.member != nullptr && admitting_.member->at(admitting_.peer).state != Member::Peer::State::kUp) {
    starve(*admitting_.member, admitting_.peer);
  }
  admitting_ = {};
  pending_.clear();
  // Their ranks try again a few times. Not those that have agreed to share: their groups have the stream already.
  std::erase_if(strangers_, on_probation);
  reshaped_ = true;
}

void Endpoint::starve(Member& member, int peer) noexcept {
  Member::Peer& p = member.at(peer);
  drop_starved(p);
  p.state = Member::Peer::State::kDown;
  p.starved = true;
  p.link.fail(Status::kExhausted);
  member.tell(peer);
}

// The listener may have a stream already.
void Endpoint::drop_starved(Member::Peer& peer) noexcept {
  if (peer.dial && peer.dial->may_be_accepted()) {
    Stream::say_want(peer.dial->fd());
  } else if (peer.dial) {
    peer.dial->withdraw();
  }
  drop_dial(peer);
}

void Endpoint::close_now(Member& member) noexcept {
  const std::lock_guard lock(mutex_);
  if (!member.closed) close(member);
}

void Endpoint::leave(Member& member) noexcept {
  const std::lock_guard lock(mutex_);
  if (!member.closed) close(member);
  forget(member);
  std::erase(members_, &member);
}

// What is polled for the member is so no more. Who has not proved himself yet will be told of its end.
void Endpoint::forget(const Member& member) {
  std::erase_if(pending_, [&](const Pending& p) { return p.member == &member; });
  std::erase_if(strangers_, [&](const Stranger& s) { return s.handshake.self() == member.self && !on_probation(s); });
  if (admitting_.member == &member) admitting_ = {};
  reshaped_ = true;
  look();
}

void Endpoint::close(Member& member) noexcept {
  member.closed = true;
  forget(member);
  const LastWords words = member.last_words();
  member.departed.front().words = words;
  departed_.splice(departed_.end(), member.departed);
  if (departed_.size() > kMostDeparted) departed_.pop_front();
  const bool starved = member.starved.load(std::memory_order_relaxed);
  for (const auto& peer : member.peers) {
    if (peer->state == Member::Peer::State::kUp) {
      peer->link.end_writing(words);
    } else if (starved) {
      drop_starved(*peer);
    } else {
      part(*peer, words);
    }
  }
}

// A dial whose peer has heard of it goes on. What is polled has room for it, which was its place among the pending that
// the group has left: this may be a thread of the group's, while the endpoint's polls.
void Endpoint::part(Member::Peer& peer, const LastWords& words) noexcept {
  if (peer.dial && peer.dial->state() == Handshake::State::kTalking) {
    try {
      partings_.reserve(partings_.size() + 1);
      partings_.push_back({std::move(*peer.dial), peer.link.stream(), words, now_in_ms()});
    } catch (const std::bad_alloc&) {  // then the peer sees it broken
    }
  }
  drop_dial(peer);
}

void Endpoint::advance_partings(std::int64_t now_ms) {
  for (std::size_t i = 0; i < partings_.size(); ++i) {
    auto& [dial, offered, words, since_ms] = partings_[i];
    if (pollfds_[partings_polled_ + i].revents != 0) dial.advance();
    if (dial.state() != Handshake::State::kDone) continue;
    if (dial.verdict() == Verdict::kAccept) {
      const std::uint32_t far = dial.listeners_inlet();
      try {
        outlive(Lingering(dial.take_socket(), Stream::end_frame(far, words)));
      } catch (const std::bad_alloc&) {  // then the peer sees it broken, and the groups that live go on
      }
    } else if (dial.verdict() == Verdict::kShare && offered != nullptr) {
      offered->end(dial.listeners_inlet(), words);
      dial.seal();
    }
  }
  std::erase_if(partings_,
                [&](const Parting& p) { return p.dial.over() || p.since_ms + handshake_timeout_.count() <= now_ms; });
}

// A process may end now. One answer of each peer is all that it takes.
void Endpoint::see_partings_off() noexcept {
  const auto any = [this] {
    const std::lock_guard lock(mutex_);
    return !partings_.empty();
  };
  for (const std::int64_t until_ms = now_in_ms() + longest_end_.count(); any() && now_in_ms() < until_ms;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

void Endpoint::tell_of_end(Handshake& handshake) noexcept {
  const auto found = std::ranges::find(departed_, handshake.self(), &Departed::self);
  found != departed_.end() ? handshake.take_leave(found->words)
                           : static_cast<void>(handshake.answer(Verdict::kRefuse, 0));
}

}  // namespace tutti::tcp
