// The links' side of the engine: reading and writing frames, opening, accepting and losing links.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "base/utf8.h"
#include "channel/message_engine.h"

namespace tutti {
namespace {

// A pass moves about this much a link and direction at most, so that no link starves the others or holds the lock for
// long: two fragments.
constexpr std::size_t kPassBytes = 2 * kFragmentBytes;

// A waiting thread looks at all links only every so many passes when there are more than a few.
constexpr std::size_t kFewLinks = 4;
constexpr std::uint32_t kFullPassEvery = 16;

// Passes between two looks at the state of links that say nothing.
constexpr std::uint32_t kStatusEvery = 256;

// More than any link holds: bounds the reading from a peer that is given up but still writes.
constexpr int kMostLastReads = 256;

}  // namespace

bool MessageEngine::open(int peer) {
  Peer& p = at(peer);
  if (p.link == nullptr && p.transport != nullptr) p.link = p.transport->link(peer);
  if (p.link == nullptr) {
    lose(peer, {Status::kPeerLost, peer});
    return false;
  }
  // A link that is connecting has no descriptor yet; its transport announces it again when it has one.
  p.rings = !p.transport->connects() && p.link->poll_fd() < 0;
  p.stands = p.stands || !p.transport->connects() || p.link->poll_fd() >= 0;
  change_poll_set();
  if (std::find(active_.begin(), active_.end(), peer) == active_.end()) active_.push_back(peer);
  return true;
}

bool MessageEngine::accept_links() {
  bool any = false;
  std::array<int, 16> peers;
  for (Transport* transport : transports_) {
    for (int n = transport->accept_new(peers); n > 0; n = transport->accept_new(peers)) {
      for (int i = 0; i < n; ++i) {
        const int peer = peers[static_cast<std::size_t>(i)];
        if (at(peer).dead.ok()) any |= open(peer);
      }
      if (n < static_cast<int>(peers.size())) break;
    }
  }
  return any;
}

bool MessageEngine::pass(int prefer) {
  if (!failed_.ok()) return false;
  ++passes_;
  bool moved = false;
  if (prefer >= 0 && prefer != rank_ && active_.size() > kFewLinks && !outputs_pending_ &&
      passes_ % kFullPassEvery != 0) {
    if (at(prefer).link == nullptr || !at(prefer).dead.ok()) return false;
    return serve(prefer);
  }
  moved = accept_links();
  outputs_pending_ = false;
  for (std::size_t i = 0; i < active_.size();) {
    const int peer = active_[i];
    moved |= serve(peer);
    if (i < active_.size() && active_[i] == peer) ++i;  // else the link was lost
  }
  if (!moved && ++idle_passes_ % kStatusEvery == 0) check_links();
  return moved;
}

bool MessageEngine::serve(int peer) {
  Peer& p = at(peer);
  bool moved = false;
  if (!p.out.idle()) moved |= flush(peer);
  if (p.dead.ok()) moved |= receive(peer);
  return moved;
}

bool MessageEngine::flush(int peer) noexcept {
  Peer& p = at(peer);
  if (p.link == nullptr || !p.dead.ok()) return false;
  const Publication publication(*this, p);
  OpQueue finished;
  const bool moved = p.out.pump(*p.link, p.taken, kPassBytes, finished);
  while (MessageOp* op = finished.pop_front()) finish(*op, kOkOutcome);
  if (moved && p.rings) waker_->ring(peer);
  const bool more = !p.out.idle();
  if (more) outputs_pending_ = true;
  const bool polls = more && p.link->polls_for_room();
  if (polls != std::exchange(p.polls_for_room, polls) && polls) change_poll_set();
  return moved;
}

bool MessageEngine::receive(int peer) {
  Peer& p = at(peer);
  const Publication publication(*this, p);
  std::size_t got = 0;
  while (got < kPassBytes && p.dead.ok()) {
    const std::size_t n = read_frame_part(peer, p);
    if (n == 0) break;
    got += n;
  }
  if (got == 0) return false;
  // A writer that found no room can have gone to sleep only when the link was full, and is rung at least once before
  // that much has been read: see kLinkSlack.
  const std::uint64_t before = p.bytes_read;
  p.bytes_read += got;
  if (p.rings && before / kLinkSlack != p.bytes_read / kLinkSlack) waker_->ring(peer);
  return true;
}

std::size_t MessageEngine::read_frame_part(int peer, Peer& p) {
  Inbox& in = p.in;
  if (in.header_got < sizeof in.header) {
    auto* raw = reinterpret_cast<std::byte*>(&in.header);
    const std::size_t n = p.link->read_some({raw + in.header_got, sizeof in.header - in.header_got});
    in.header_got += n;
    if (in.header_got == sizeof in.header) {
      if (in.header.magic != kFrameMagic || !p.out.acknowledge(in.header.credit) || !begin_body(peer, p))
        lose(peer, {Status::kInternal, peer});
      else if (in.body_left == 0)
        end_body(peer, p);
    }
    return n;
  }
  std::array<std::byte, 4096> dropped;
  MutableBytes into(in.into, in.body_left);
  if (in.into == nullptr) into = MutableBytes(dropped.data(), std::min<std::uint64_t>(dropped.size(), in.body_left));
  const std::size_t n = p.link->read_some(into);
  if (in.into != nullptr) in.into += n;
  in.body_left -= n;
  if (in.body_left == 0) end_body(peer, p);
  return n;
}

// Decides where the payload goes. False: the peer does not speak our protocol.
bool MessageEngine::begin_body(int peer, Peer& p) {
  Inbox& in = p.in;
  const FrameHeader& h = in.header;
  in.into = nullptr;
  in.body_left = 0;
  switch (h.kind) {
    case FrameKind::kEager:
    case FrameKind::kAnnounce:
    case FrameKind::kBlank:
      return begin_message(peer, p);
    case FrameKind::kData:
      if (h.bytes > kFragmentBytes) return false;
      in.body_left = h.bytes;
      for (MessageOp* op = p.incoming.front(); op != nullptr; op = op->next) {
        if (op->id != h.id) continue;
        if (h.bytes > op->bytes - op->moved || (h.bytes == 0 && op->bytes != 0)) return false;
        in.op = op;
        in.into = op->data + op->moved;
        break;
      }
      return true;  // without a receive: it was cancelled, the payload is dropped
    case FrameKind::kRefuse:
      in.into = reinterpret_cast<std::byte*>(&in.echo);
      in.body_left = sizeof in.echo;
      return h.bytes == sizeof in.echo;
    case FrameKind::kGrant:
      p.out.grant(h.id);
      outputs_pending_ = true;
      return true;
    case FrameKind::kWithdraw:
      on_withdraw(p, peer, h.id);
      return true;
    case FrameKind::kDecline:
      if (MessageOp* op = p.out.find(h.id)) {
        p.out.retract(*op, false);
        finish(*op, {Status::kPeerFailed, peer});
      }
      return true;
  }
  return false;
}

// A new message: into the receive that waits for it, or kept.
bool MessageEngine::begin_message(int peer, Peer& p) {
  Inbox& in = p.in;
  const FrameHeader h = in.header;
  const bool eager = h.kind == FrameKind::kEager;
  if (eager) {
    if (h.bytes > kEagerBytes) return false;
    in.body_left = h.bytes;
  }
  MessageOp* op = find_posted(peer, h.tag);
  if (op == nullptr) {
    const auto kind = eager ? Arrival::Kind::kEager
                            : (h.kind == FrameKind::kAnnounce ? Arrival::Kind::kAnnounced : Arrival::Kind::kBlank);
    Arrival& a = new_arrival(kind, peer, h.id, h.tag, h.bytes, h.record);
    p.arrived.push_back(&a);
    if (eager) {
      a.payload.resize(h.bytes);
      in.arrival = &a;
      in.into = a.payload.data();
    }
    return true;
  }
  unpost(*op);
  op->phase = MessagePhase::kNone;
  if (eager) p.taken += eager_cost(h.bytes);
  if (h.kind == FrameKind::kBlank) {
    op->source = peer;
    finish(*op, {Status::kPeerFailed, peer});
  } else if (accept_or_refuse(*op, peer, h.id, h.bytes, h.record)) {
    if (eager) {
      op->phase = MessagePhase::kFilling;
      in.op = op;
      in.into = op->data;
    } else {
      grant(*op, peer, h.id);
    }
  }
  return true;
}

void MessageEngine::end_body(int peer, Peer& p) {
  Inbox& in = p.in;
  const FrameKind kind = in.header.kind;
  MessageOp* op = std::exchange(in.op, nullptr);
  Arrival* arrival = std::exchange(in.arrival, nullptr);
  in.header_got = 0;
  if (kind == FrameKind::kEager && op != nullptr) {
    finish(*op, kOkOutcome);
  } else if (kind == FrameKind::kEager && arrival != nullptr) {
    arrival->complete = true;
    if (MessageOp* receive = arrival->op) {
      if (arrival->bytes != 0) std::memcpy(receive->data, arrival->payload.data(), arrival->bytes);
      finish(*receive, kOkOutcome);
      free_arrival(*arrival);
    }
  } else if (kind == FrameKind::kData && op != nullptr) {
    op->moved += in.header.bytes;
    if (op->moved == op->bytes) {
      p.incoming.erase(op);
      finish(*op, kOkOutcome);
    }
  } else if (kind == FrameKind::kRefuse) {
    on_refuse(p, peer);
  } else if (kind == FrameKind::kGrant) {
    flush(peer);
  }
}

void MessageEngine::on_withdraw(Peer& p, int peer, std::uint64_t id) {
  for (MessageOp* op = p.incoming.front(); op != nullptr; op = op->next)
    if (op->id == id) {
      p.incoming.erase(op);
      return finish(*op, {Status::kPeerFailed, peer});
    }
  for (Arrival* a = p.arrived.front(); a != nullptr; a = a->next)
    if (a->id == id && a->kind == Arrival::Kind::kAnnounced) a->kind = Arrival::Kind::kBlank;
}

void MessageEngine::on_refuse(Peer& p, int peer) {
  const CallRecord theirs = p.in.header.record;
  if (MessageOp* op = p.out.find(p.in.header.id)) {
    p.out.retract(*op, false);
    op->remote = theirs;
    return finish(*op, {Status::kMismatch, peer});
  }
  note_late_mismatch(peer, p.in.echo, theirs);
}

// Peers on other hosts learn of our end by that of their links. Those on this host, whose links ring, learn of it by
// other means.
void MessageEngine::say_farewell(Outcome outcome, std::string_view reason, Outcome cause) noexcept {
  if (::getpid() != owner_) return;
  const LastWords words = last_words(outcome, reason, cause);
  for (Transport* transport : transports_) transport->close(outcome.status, words);
}

void MessageEngine::say_left() noexcept {
  if (::getpid() != owner_) return;
  if (failed_.ok()) say_farewell({Status::kPeerLeft, rank_}, {}, {});
  for (Transport* transport : transports_) transport->finish_close();
}

// What `rank` has said of itself, or another of it. The first word counts.
void MessageEngine::note_said(int rank, const Farewell& farewell) {
  MessagePort::Said& said = at(rank).said;
  if (!said.outcome.ok()) return;
  Outcome outcome = farewell.outcome;
  const bool of_another = outcome.status == Status::kPeerFailed && outcome.peer == rank;
  if (outcome.status == Status::kAborted || of_another) {
    said.reason = in_a_line({farewell.reason.data(), ::strnlen(farewell.reason.data(), farewell.reason.size())});
    outcome = of_another && said.reason.empty() ? farewell.cause : Outcome{Status::kAborted, rank};
  }
  said.outcome = outcome;
}

// Whoever a peer lost is lost to us too; what else went wrong is the peer's.
Outcome MessageEngine::heard(int peer, const Farewell& farewell) {
  const auto [status, blamed] = farewell.outcome;
  const bool known = blamed >= 0 && blamed < static_cast<int>(peers_.size());
  Outcome outcome{Status::kPeerFailed, peer};
  if (known && blamed != rank_ &&
      (status == Status::kPeerLost || status == Status::kPeerLeft || status == Status::kPeerFailed)) {
    outcome = {status, blamed};
  }
  const bool cause_known = farewell.cause.peer >= 0 && farewell.cause.peer < static_cast<int>(peers_.size());
  note_said(outcome.peer, {{status, known ? blamed : -1},
                           {farewell.cause.status, cause_known ? farewell.cause.peer : -1},
                           farewell.reason});
  return outcome;
}

void MessageEngine::take_rest(int peer) {
  for (int k = 0; k < kMostLastReads && at(peer).link != nullptr && at(peer).dead.ok() && receive(peer); ++k) {
  }
}

void MessageEngine::give_up(int peer, Outcome outcome) {
  if (!failed_.ok()) return;
  for (int i = 0; i < static_cast<int>(peers_.size()); ++i) {
    if (peer < 0 || i == peer) take_rest(i);
  }
  if (peer >= 0) return lose(peer, outcome);
  while (MessageOp* op = posted_any_.pop_front()) finish(*op, outcome);
}

// The link is dead.
void MessageEngine::end_of(int peer, Status status) {
  if (!failed_.ok()) return;
  take_rest(peer);
  if (!at(peer).dead.ok()) return;
  const std::optional<Farewell> farewell = Farewell::of(at(peer).link->last_words());
  lose(peer, farewell ? heard(peer, *farewell) : Outcome{status, peer});
}

void MessageEngine::check_links() {
  for (std::size_t i = 0; i < active_.size();) {
    const int peer = active_[i];
    const Status status = at(peer).link->status();
    if (status != Status::kOk) end_of(peer, status);
    if (i < active_.size() && active_[i] == peer) ++i;
  }
}

bool MessageEngine::has_input() const noexcept {
  if (!failed_.ok()) return false;
  return std::ranges::any_of(active_, [this](int peer) {
    const Peer& p = *peers_[static_cast<std::size_t>(peer)];
    return (p.stands && p.link->has_input()) || (p.rings && !p.out.idle() && p.link->is_drained());
  });
}

void MessageEngine::change_poll_set() noexcept {
  ++poll_set_number_;
  news_ = true;
}

std::uint64_t MessageEngine::poll_set(std::vector<pollfd>& fds) {
  fds.clear();
  for (const int peer : active_) {
    const Peer& p = at(peer);
    const int fd = p.link->poll_fd();
    if (fd >= 0) fds.push_back({fd, static_cast<short>(p.polls_for_room ? POLLIN | POLLOUT : POLLIN), 0});
  }
  return poll_set_number_;
}

}  // namespace tutti
