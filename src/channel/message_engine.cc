// Matching of receives and messages, and the ending of ops. The links' side is message_links.cc.
#include "channel/message_engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"

namespace tutti {
namespace {

// Arrivals kept for reuse, and memory for payloads with them, so that a steady flow of unexpected messages allocates
// nothing.
constexpr std::size_t kSpareArrivals = 64;
constexpr std::size_t kSpareBytes = std::size_t{512} << 10;

// Most failures that a rank hears of are deadlines that have passed. Its own is near then, and names who is missing. Or
// it is itself to blame, and is still trying again.
constexpr std::int64_t kOwnFindingNs = 3'000'000'000;

bool agree(const MessageOp& op, std::uint64_t bytes, const CallRecord& record) noexcept {
  if (op.bytes != bytes) return false;
  if ((op.tag & kCollectiveTag) != 0) return op.record.hash == record.hash && op.record.sequence == record.sequence;
  if (op.record.call == kCallRecv || record.call == kCallSend) return op.record.dtype == record.dtype;
  return true;
}

}  // namespace

MessageEngine::MessageEngine(int rank, std::vector<Transport*> transport_of_peer, PortWaker* waker)
    : rank_(rank), owner_(::getpid()), waker_(waker) {
  for (Transport* transport : transport_of_peer) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->transport = transport;
    if (transport != nullptr && std::find(transports_.begin(), transports_.end(), transport) == transports_.end())
      transports_.push_back(transport);
  }
  active_.reserve(peers_.size());
  spare_arrivals_.reserve(kSpareArrivals);  // free_arrival() takes no memory
  for (Transport* transport : transports_) transport->on_news([waker] { waker->nudge(); });
}

MessageEngine::~MessageEngine() {
  for (Transport* transport : transports_) transport->on_news({});
  for (auto& p : peers_) {
    while (Arrival* arrival = p->arrived.pop_front()) delete arrival;
    delete p->in.arrival;
  }
  for (Arrival* arrival : spare_arrivals_) delete arrival;
}

// What every op goes through first; false if it has ended at once.
bool MessageEngine::begin(MessageOp& op) {
  op.source = -1;
  op.moved = 0;
  op.phase = MessagePhase::kNone;
  op.outcome = {};
  op.order = next_order_++;
  // relaxed: nobody but this thread and those that take the port's lock looks at the op yet.
  op.state.store(MessageOp::State::kPosted, std::memory_order_relaxed);
  all_.push_back(&op);
  ++pending_;
  if (!failed_.ok()) {
    finish(op, failed_);
    return false;
  }
  if (late_mismatch_.has_value()) {
    op.record = late_mismatch_->ours;
    op.remote = late_mismatch_->theirs;
    finish(op, {Status::kMismatch, late_mismatch_->peer});
    late_mismatch_.reset();
    return false;
  }
  return true;
}

void MessageEngine::post_send(MessageOp& op) {
  if (!begin(op)) return;
  if (op.peer == rank_) return post_local(op);
  Peer& p = at(op.peer);
  if (p.dead.ok() && p.link == nullptr) open(op.peer);
  if (!p.dead.ok()) return finish(op, p.dead);
  p.out.send(op);
  flush(op.peer);
}

void MessageEngine::post_recv(MessageOp& op) {
  if (!begin(op)) return;
  if (Arrival* arrival = find_arrival(op.peer, op.tag)) return claim(op, *arrival);
  if (op.peer >= 0 && op.peer != rank_) {
    // Without a connection nobody would notice that the peer is gone.
    Peer& p = at(op.peer);
    if (p.dead.ok() && p.link == nullptr && p.transport != nullptr && p.transport->connects()) open(op.peer);
    if (!p.dead.ok()) return finish(op, p.dead);
  }
  op.phase = MessagePhase::kPosted;
  (op.peer >= 0 ? at(op.peer).posted : posted_any_).push_back(&op);
}

// The oldest posted receive that a message from `peer` fits.
MessageOp* MessageEngine::find_posted(int peer, std::uint64_t tag) noexcept {
  MessageOp* found = nullptr;
  for (const OpQueue* queue : {&at(peer).posted, &posted_any_})
    for (MessageOp* op = queue->front(); op != nullptr; op = op->next) {
      if (op->tag != tag) continue;
      if (found == nullptr || op->order < found->order) found = op;
      break;
    }
  return found;
}

// The message that came first of those that fit a receive.
Arrival* MessageEngine::find_arrival(int peer, std::uint64_t tag) noexcept {
  Arrival* found = nullptr;
  const int from = peer >= 0 ? peer : 0;
  const int to = peer >= 0 ? peer + 1 : static_cast<int>(peers_.size());
  for (int i = from; i < to; ++i)
    for (Arrival* a = at(i).arrived.front(); a != nullptr; a = a->next) {
      if (a->tag != tag) continue;
      if (found == nullptr || a->order < found->order) found = a;
      break;
    }
  return found;
}

const Arrival* MessageEngine::find_stranger(std::uint64_t first, std::uint64_t end, std::uint32_t hash) const noexcept {
  for (const auto& p : peers_) {
    for (const Arrival* a = p->arrived.front(); a != nullptr; a = a->next) {
      if (a->tag >= first && a->tag < end && a->record.hash != hash) return a;
    }
  }
  return nullptr;
}

void MessageEngine::unpost(MessageOp& op) noexcept { (op.peer >= 0 ? at(op.peer).posted : posted_any_).erase(&op); }

// Compares the two sides of a message before anything is written; on a difference the receive, which is in no queue,
// ends here and the sender hears of it.
bool MessageEngine::accept_or_refuse(MessageOp& op, int peer, std::uint64_t id, std::uint64_t bytes,
                                     const CallRecord& record) {
  op.source = peer;
  if (agree(op, bytes, record)) return true;
  if (peer == rank_) {
    note_late_mismatch(peer, record, op.record);
  } else {
    at(peer).out.refuse(id, op.record, record);
    flush(peer);
  }
  op.remote = record;
  finish(op, {Status::kMismatch, peer});
  return false;
}

void MessageEngine::grant(MessageOp& op, int peer, std::uint64_t id) {
  op.id = id;
  op.phase = MessagePhase::kIncoming;
  at(peer).incoming.push_back(&op);
  at(peer).out.control(FrameKind::kGrant, id);
  flush(peer);
}

// A receive, in no queue, meets a message that is here.
void MessageEngine::claim(MessageOp& op, Arrival& arrival) {
  Peer& p = at(arrival.peer);
  const bool eager = arrival.kind == Arrival::Kind::kEager;
  if (eager) p.taken += eager_cost(arrival.bytes);
  op.source = arrival.peer;
  if (arrival.kind == Arrival::Kind::kBlank) {
    p.arrived.erase(&arrival);
    finish(op, {Status::kPeerFailed, arrival.peer});
    return free_arrival(arrival);
  }
  if (arrival.kind == Arrival::Kind::kLocal) {
    MessageOp& send = *arrival.op;
    p.arrived.erase(&arrival);
    if (agree(op, arrival.bytes, arrival.record)) {
      std::memcpy(op.data, send.data, send.bytes);
      finish(op, kOkOutcome);
      finish(send, kOkOutcome);
    } else {
      send.remote = op.record;
      op.remote = send.record;
      finish(op, {Status::kMismatch, rank_});
      finish(send, {Status::kMismatch, rank_});
    }
    return free_arrival(arrival);
  }
  const bool agreed = accept_or_refuse(op, arrival.peer, arrival.id, arrival.bytes, arrival.record);
  if (agreed && arrival.kind == Arrival::Kind::kAnnounced) grant(op, arrival.peer, arrival.id);
  p.arrived.erase(&arrival);  // only now: where there was no memory for the answer it still belongs there
  if (!agreed || arrival.kind == Arrival::Kind::kAnnounced) {
    if (p.in.arrival == &arrival) {
      p.in.arrival = nullptr;
      p.in.into = nullptr;
    }
    return free_arrival(arrival);
  }
  if (!arrival.complete) {  // the inbox still reads it, and finishes both
    arrival.op = &op;
    op.phase = MessagePhase::kClaimed;
    return;
  }
  if (arrival.bytes != 0) std::memcpy(op.data, arrival.payload.data(), arrival.bytes);
  finish(op, kOkOutcome);
  free_arrival(arrival);
}

void MessageEngine::post_local(MessageOp& op) {
  if (MessageOp* receive = find_posted(rank_, op.tag)) {
    unpost(*receive);
    receive->phase = MessagePhase::kNone;
    receive->source = rank_;
    if (agree(*receive, op.bytes, op.record)) {
      if (op.bytes != 0) std::memcpy(receive->data, op.data, op.bytes);
      finish(*receive, kOkOutcome);
      finish(op, kOkOutcome);
    } else {
      receive->remote = op.record;
      op.remote = receive->record;
      finish(*receive, {Status::kMismatch, rank_});
      finish(op, {Status::kMismatch, rank_});
    }
    return;
  }
  const bool keep = op.bytes <= kEagerBytes;
  Arrival& a = new_arrival(keep ? Arrival::Kind::kEager : Arrival::Kind::kLocal, rank_, 0, op.tag, op.bytes, op.record);
  at(rank_).arrived.push_back(&a);
  if (!keep) {
    a.op = &op;
    op.phase = MessagePhase::kLocal;
    return;
  }
  a.payload.assign(op.data, op.data + op.bytes);
  a.complete = true;
  finish(op, kOkOutcome);
}

// The message that was refused belongs to an op that has ended: somebody who still listens must hear of it.
void MessageEngine::note_late_mismatch(int peer, const CallRecord& ours, const CallRecord& theirs) {
  for (MessageOp* op = all_.front(); op != nullptr; op = op->newer) {
    if (op->phase == MessagePhase::kNone) continue;  // being ended by our caller
    op->record = ours;
    op->remote = theirs;
    return retract(*op, {Status::kMismatch, peer}, false);
  }
  late_mismatch_ = LateMismatch{peer, ours, theirs};
}

Arrival& MessageEngine::new_arrival(Arrival::Kind kind, int peer, std::uint64_t id, std::uint64_t tag,
                                    std::uint64_t bytes, const CallRecord& record) {
  Arrival* a;
  if (spare_arrivals_.empty()) {
    a = new Arrival;
  } else {
    a = spare_arrivals_.back();
    spare_arrivals_.pop_back();
    spare_bytes_ -= a->payload.capacity();
  }
  a->kind = kind;
  a->complete = false;
  a->peer = peer;
  a->id = id;
  a->tag = tag;
  a->bytes = bytes;
  a->order = next_arrival_++;
  a->record = record;
  a->op = nullptr;
  return *a;
}

void MessageEngine::free_arrival(Arrival& arrival) noexcept {
  if (spare_arrivals_.size() < kSpareArrivals) {
    if (spare_bytes_ + arrival.payload.capacity() > kSpareBytes) arrival.payload = std::vector<std::byte>();
    spare_bytes_ += arrival.payload.capacity();
    spare_arrivals_.push_back(&arrival);
  } else {
    delete &arrival;
  }
}

// The op is in no queue any more. Nothing of it is touched after its state says done, unless on_done is still to come.
void MessageEngine::finish(MessageOp& op, Outcome outcome, bool quiet) noexcept {
  all_.erase(&op);
  --pending_;
  news_ = true;
  op.outcome = outcome;
  if (op.on_done && !quiet) {
    op.phase = MessagePhase::kFinishing;
    callbacks_.push_back(&op);
    return;
  }
  op.phase = MessagePhase::kNone;
  // release: publishes outcome, source and payload; pairs with the acquire in MessageOp::done.
  op.state.store(MessageOp::State::kDone, std::memory_order_release);
}

// Takes a receive out of where it is; what still comes for it is dropped.
void MessageEngine::detach_receive(MessageOp& op, bool tell) {
  if (op.phase == MessagePhase::kPosted) return unpost(op);
  Peer& p = at(op.source);
  Inbox& in = p.in;
  if (op.phase == MessagePhase::kIncoming) {
    p.incoming.erase(&op);
    if (tell) p.out.control(FrameKind::kDecline, op.id);
  }
  if (in.op == &op) {
    in.op = nullptr;
    in.into = nullptr;
  }
  if (in.arrival != nullptr && in.arrival->op == &op) {
    free_arrival(*in.arrival);
    in.arrival = nullptr;
    in.into = nullptr;
  }
}

void MessageEngine::retract(MessageOp& op, Outcome outcome, bool quiet) {
  if (op.phase == MessagePhase::kLocal) {
    auto& arrived = at(rank_).arrived;
    for (Arrival* a = arrived.front(); a != nullptr; a = a->next)
      if (a->op == &op) a->kind = Arrival::Kind::kBlank;
  } else if (op.is_send) {
    at(op.peer).out.retract(op, true);
    flush(op.peer);
  } else {
    const int peer = op.phase == MessagePhase::kPosted ? -1 : op.source;
    detach_receive(op, true);
    if (peer >= 0) flush(peer);
  }
  op.phase = MessagePhase::kNone;
  finish(op, outcome, quiet);
}

void MessageEngine::fail(Outcome outcome, std::string_view reason, Outcome cause) noexcept {
  if (!failed_.ok()) return;
  failed_ = outcome;
  say_farewell(outcome, reason, cause);
  for (int i = 0; i < static_cast<int>(peers_.size()); ++i) lose(i, outcome);
  posted_any_.clear();
  while (MessageOp* op = all_.front()) finish(*op, outcome);
}

// Ends everything that has to do with a peer whose link is dead. Complete messages of its stay receivable.
void MessageEngine::lose(int peer, Outcome outcome) noexcept {
  Peer& p = at(peer);
  if (!p.dead.ok()) return;
  p.dead = outcome;
  if (outcome.status == Status::kPeerFailed && failure_heard_ns_ == 0) failure_heard_ns_ = now_ns();
  p.polls_for_room = false;
  std::erase(active_, peer);
  change_poll_set();
  p.out.clear();
  p.posted.clear();
  p.incoming.clear();
  if (p.in.arrival != nullptr) {
    if (p.in.arrival->op == nullptr) p.arrived.erase(p.in.arrival);
    free_arrival(*p.in.arrival);
  }
  p.in = Inbox{};
  for (Arrival* a = p.arrived.front(); a != nullptr;) {
    Arrival* next = a->next;
    if (a->kind == Arrival::Kind::kAnnounced || a->kind == Arrival::Kind::kLocal) {
      p.arrived.erase(a);
      free_arrival(*a);
    }
    a = next;
  }
  for (MessageOp* op = all_.front(); op != nullptr;) {
    MessageOp* next = op->newer;
    if (op->peer == peer || (!op->is_send && op->source == peer)) finish(*op, outcome);
    op = next;
  }
}

Outcome MessageEngine::lost() const noexcept {
  if (!failed_.ok()) return failed_;
  const bool soon_known = failure_heard_ns_ != 0 && now_ns() - failure_heard_ns_ < kOwnFindingNs;
  Outcome found;
  for (const auto& p : peers_) {
    // Who could not be connected to may have come to its end in good order. Who waits for it is told so.
    if (!p->stands) continue;
    const Status status = p->dead.status;
    if (status == Status::kPeerLeft || (status == Status::kPeerFailed && soon_known)) continue;
    if (weight_of(status) > weight_of(found.status)) found = p->dead;
  }
  return found;
}

void MessageEngine::awaited(std::vector<int>& peers) const {
  peers.clear();
  for (const MessageOp* op = all_.front(); op != nullptr; op = op->newer) {
    const int peer = op->peer >= 0 || op->phase == MessagePhase::kPosted ? op->peer : op->source;
    if (peer != rank_ && std::find(peers.begin(), peers.end(), peer) == peers.end()) peers.push_back(peer);
  }
}

}  // namespace tutti
