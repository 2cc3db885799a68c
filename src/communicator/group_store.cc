#include "communicator/group_store.h"

#include <algorithm>
#include <utility>

#include "base/bytes.h"
#include "base/interruption.h"
#include "base/parse.h"
#include "base/registry.h"
#include "bootstrap/exchange.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kSoon(500);
constexpr std::size_t kAnnounced = 32U << 10;   // about what a message is sent in pieces from
constexpr std::int64_t kShortNs = 100'000'000;  // less than it a port that drives for all does not wait

}  // namespace

GroupStore::GroupStore(std::shared_ptr<CommunicatorImpl> group, std::vector<int> members, const std::string& id)
    : group_(std::move(group)),
      members_(std::move(members)),
      id_(id),
      rank_(static_cast<int>(std::ranges::find(members_, group_->rank()) - members_.begin())),
      star_(size() > kMostDirect),
      head_tag_(forming_tag(id_, "store", "head")),
      rest_tag_(forming_tag(id_, "store", "rest")) {
  for (int member = 0; member < size(); ++member) {
    if (member == rank_ || (star_ && rank_ != 0 && member != 0)) continue;
    peers_.emplace_back().member = member;
  }
  for (Peer& peer : peers_) expect(peer);
}

GroupStore::~GroupStore() {
  Deadline deadline = Deadline::after(kSoon);
  flush(deadline);
  if (forked_child()) return;
  if (!lost_.ok()) tell_lost();
  for (Peer& peer : peers_) {
    if (!peer.op.done()) group_->port().cancel(peer.op);
  }
  for (Sending& sending : sent_) {
    for (MessageOp& op : sending.ops) {
      if (!op.done()) group_->port().cancel(op);
    }
  }
}

std::string GroupStore::what() const { return "'" + id_ + "' of group '" + group_->name() + "'"; }

void GroupStore::expect(Peer& peer) {
  void* const data = peer.is_rest ? static_cast<void*>(peer.text.data() + kFirstBytes) : &peer.head;
  const std::size_t bytes = peer.is_rest ? peer.text.size() - kFirstBytes : sizeof peer.head;
  const int from = members_[static_cast<std::size_t>(peer.member)];
  post_forming(group_->port(), peer.op, false, from, peer.is_rest ? rest_tag_ : head_tag_, data, bytes);
}

void GroupStore::send(const std::string& text, int except) {
  drop_sent();
  Sending& sending = sent_.emplace_back();
  sending.text = text;
  sending.head = MessageHead(text);
  const auto post = [&](int to, std::uint64_t tag, void* data, std::size_t bytes) {
    post_forming(group_->port(), sending.ops.emplace_back(), true, to, tag, data, bytes);
  };
  for (const Peer& peer : peers_) {
    if (peer.member == except) continue;
    const int to = members_[static_cast<std::size_t>(peer.member)];
    post(to, head_tag_, &sending.head, sizeof sending.head);
    if (text.size() <= kFirstBytes) continue;
    post(to, rest_tag_, sending.text.data() + kFirstBytes, text.size() - kFirstBytes);
  }
}

// What cannot leave now does while this rank waits here again.
void GroupStore::say(Kind kind, bool to_all, std::string_view key, std::string_view value) {
  if (ended_) return;
  ByteWriter out;
  out.u8(static_cast<std::uint8_t>(kind)).u8(to_all ? 1 : 0).text(key).text(value);
  send(out.str());
}

void GroupStore::set(std::string_view key, std::string_view value) {
  values_.insert_or_assign(std::string(key), std::string(value));
  say(Kind::kValue, true, key, value);
  if (!passes_on() || value.size() < kAnnounced) return;
  // It goes in steps, and all wait for it, while this rank may go on to wait for them elsewhere.
  Deadline deadline = Deadline::after(kSoon);
  flush(deadline);
}

bool GroupStore::set_for(int reader, std::string_view key, std::string_view value) {
  if (!star_ || reader != 0) {
    set(key, value);
    return true;
  }
  values_.insert_or_assign(std::string(key), std::string(value));
  if (rank_ != 0) say(Kind::kValue, false, key, value);
  return false;
}

std::string GroupStore::get(std::string_view key, std::chrono::milliseconds timeout) {
  auto found = values_.end();
  Deadline deadline = Deadline::after(timeout);
  const auto there = [&] {
    found = values_.find(key);
    return found != values_.end();
  };
  if (!await(there, deadline)) {
    throw_error(ErrorKind::kTimeout, what() + " has not been given '" + std::string(key) + "' within " +
                                         std::to_string(timeout.count()) + " ms");
  }
  return found->second;
}

std::int64_t GroupStore::add(std::string_view key, std::int64_t amount) {
  Deadline now = Deadline::after(std::chrono::milliseconds(0));
  if (amount == 0) await([] { return false; }, now);
  std::int64_t& sum = sums_[std::string(key)];
  if (__builtin_add_overflow(sum, amount, &sum)) {
    throw_error(ErrorKind::kInternal, "the sum '" + std::string(key) + "' of " + what() + " is too large");
  }
  const std::int64_t result = sum;
  if (amount != 0) say(Kind::kAmount, true, key, std::to_string(amount));
  return result;
}

void GroupStore::erase(std::string_view key) noexcept {
  if (const auto found = values_.find(key); found != values_.end()) values_.erase(found);
}

void GroupStore::end(std::chrono::milliseconds timeout) {
  Deadline deadline = Deadline::after(timeout);
  deadline.expired();  // the clock starts here
  const auto say_end = [&] {
    say(Kind::kEnd, false, {}, {});
    ended_ = true;
  };
  if (!passes_on()) say_end();
  const auto all_have = [&] {
    if (values_.contains(failure_key(id_))) throw_if_told(*this, id_, rank_);
    return std::ranges::all_of(peers_, [](const Peer& peer) { return peer.ended; });
  };
  if (!await(all_have, deadline)) {
    std::vector<int> absent;
    for (const Peer& peer : peers_) {
      if (!peer.ended) absent.push_back(members_[static_cast<std::size_t>(peer.member)]);
    }
    throw_error(ErrorKind::kTimeout, "rank " + std::to_string(group_->rank()) + " waited " +
                                         std::to_string(timeout.count()) + " ms for all ranks of " + what() + ": " +
                                         name_ranks(absent) +
                                         " did not come to its end; look at them, or allow more time");
  }
  if (passes_on()) say_end();
  flush(deadline);
  note_want();
  if (!lost_.ok()) throw_lost();  // then not all have heard of the end
}

// Who reads a connection reads for other ranks of the process, too. Where this one had no memory for what came for
// them, they miss it, though all that this one awaits is there: it is to say why before they do.
void GroupStore::note_want() noexcept {
  MessagePort& port = group_->port();
  port.progress();  // finds the end of what is read no more
  for (const Peer& peer : peers_) {
    const Outcome outcome = port.look(members_[static_cast<std::size_t>(peer.member)]);
    if (outcome.status == Status::kExhausted) note_lost(outcome);
  }
}

// All that has come, of every peer.
void GroupStore::take_in() {
  for (Peer& peer : peers_) {
    while (!peer.ended && peer.op.done()) {
      if (!peer.op.outcome.ok()) {
        note_lost(peer.op.outcome);
        break;
      }
      if (!std::exchange(peer.is_rest, false)) {
        peer.text = text_of(peer.head, members_[static_cast<std::size_t>(peer.member)], what());
        peer.is_rest = peer.text.size() > kFirstBytes;
      }
      if (!peer.is_rest) take_in(peer, std::exchange(peer.text, {}));
      if (!peer.ended) expect(peer);
    }
  }
}

void GroupStore::take_in(Peer& peer, const std::string& text) {
  ByteReader in(text);
  const auto kind = static_cast<Kind>(in.u8());
  const bool to_all = in.u8() != 0;
  const std::string key(in.text()), value(in.text());
  std::int64_t amount = 0, sum = 0;
  bool known = in.done() && kind <= Kind::kEnd;
  if (known && kind == Kind::kAmount) {
    known = parse_number(value, amount) && !__builtin_add_overflow(sums_[key], amount, &sum);
  }
  if (!known) {
    throw_error(ErrorKind::kInternal, "rank " + std::to_string(members_[static_cast<std::size_t>(peer.member)]) +
                                          " speaks another version of Tutti: install one version everywhere");
  }
  if (kind == Kind::kEnd) {
    peer.ended = true;
    return;
  }
  if (kind == Kind::kValue) values_.insert_or_assign(key, value);
  if (kind == Kind::kAmount) sums_[key] = sum;
  if (to_all && passes_on()) send(text, peer.member);
}

bool GroupStore::await(const std::function<bool()>& there, Deadline& deadline) {
  MessagePort& port = group_->port();
  port.progress();
  for (;;) {
    take_in();
    if (there()) {
      flush(deadline);  // others may wait for it, and this rank now for them elsewhere
      return true;
    }
    group_->throw_if_unusable();
    if (!lost_.ok()) throw_lost();
    if (deadline.expired()) return false;
    sleep(deadline);
    throw_if_interrupted("the forming of " + what());
  }
}

// Until something has come, or the time is over.
void GroupStore::sleep(Deadline& deadline) {
  MessagePort& port = group_->port();
  const auto waiting = std::ranges::find_if(peers_, [](const Peer& peer) { return !peer.ended; });
  if (deadline.remaining_ns() < kShortNs && waiting != peers_.end()) {
    constexpr std::chrono::milliseconds kLook(1);
    Deadline look = Deadline::after(kLook);
    port.wait(waiting->op, look, true);
    return;
  }
  port.drive([&] {
    return deadline.expired() ||
           std::ranges::any_of(peers_, [](const Peer& peer) { return !peer.ended && peer.op.done(); });
  });
}

void GroupStore::drop_sent() noexcept {
  for (const Sending& sending : sent_) {
    for (const MessageOp& op : sending.ops) {
      if (op.done() && !op.outcome.ok()) note_lost(op.outcome);
    }
  }
  sent_.remove_if([](const Sending& sending) {
    return std::ranges::all_of(sending.ops, [](const MessageOp& op) { return op.done(); });
  });
}

void GroupStore::note_lost(Outcome outcome) noexcept {
  if (lost_.ok()) lost_ = outcome;
}

// The port has given all up then, those too by which others could be told.
void GroupStore::tell_lost() noexcept {
  if (lost_.status != Status::kPeerLost && lost_.status != Status::kPeerFailed) return;
  if (group_->look_at(lost_.peer).ok()) return;  // it has only taken back a message of this forming
  const std::vector<int>& here = group_->host_ranks();
  const auto is_here = [&](int rank) { return std::ranges::binary_search(here, rank); };
  if (!is_here(lost_.peer) || std::ranges::all_of(members_, is_here)) return;
  try {
    group_->fail_by(lost_, "while '" + id_ + "' was forming, ");
  } catch (const std::bad_alloc&) {
    group_->fail_by(lost_, {});
  }
}

void GroupStore::flush(Deadline& deadline) noexcept {
  if (forked_child()) return;
  for (Sending& sending : sent_) {
    for (MessageOp& op : sending.ops) {
      if (!op.done()) group_->port().wait(op, deadline);
    }
  }
  drop_sent();
}

// What has been told says more.
void GroupStore::throw_lost() {
  if (values_.contains(failure_key(id_))) throw_if_told(*this, id_, rank_);
  throw_if_interrupted("the forming of " + what());
  group_->throw_if_unusable();  // first: what follows makes it so
  FailureContext context;
  Outcome cause = lost_;
  group_->find_cause(cause, context);
  if (cause.status != Status::kExhausted) lost_ = cause;
  tell_lost();
  throw_lost_rank(cause, context, group_->rank(), what());
}

}  // namespace tutti
