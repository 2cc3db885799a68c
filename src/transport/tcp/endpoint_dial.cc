// How an endpoint dials, and what it knows of its streams.
#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/process.h"
#include "transport/tcp/endpoint.h"
#include "transport/tcp/retries.h"
#include "tutti/error.h"

namespace tutti::tcp {
namespace {

using State = Member::Peer::State;

constexpr const char* kSilentThere = "cannot be reached: its host does not answer any more";
constexpr const char* kNoDescriptorThere =
    "cannot be reached: it has no descriptor left for a connection (raise its ulimit -n, or destroy groups that are "
    "not used)";

const std::string& where(const Member& member, int peer) {
  return member.known_addresses[static_cast<std::size_t>(peer)].there;
}

// Ends of sentences: where an address leads to somebody else.
constexpr const char* kOtherAddress = "TUTTI_SOCKET_IFNAME on that rank chooses the interface whose address it offers";
constexpr const char* kSomebodyElse =
    "that rank has died and somebody else has its port, or its address leads to "
    "another machine from here; ";

std::string other_secret(const Member& member, int peer) {
  return "cannot be reached: whoever listens for it at " + where(member, peer) +
         " has another secret, or is of another job; give all ranks the same TUTTI_SECRET, or none. If they have "
         "that, " +
         kSomebodyElse + kOtherAddress;
}

std::string other_version(const Member& member, int peer) {
  return "cannot be reached: whoever listens for it at " + where(member, peer) +
         " has another version of Tutti; install one version everywhere";
}

std::string other_program(const Member& member, int peer) {
  return "cannot be reached: what listens at " + where(member, peer) + " is not Tutti: " + kSomebodyElse +
         kOtherAddress;
}

std::string no_way(const Member& member, int peer, int error) {
  const std::string& at = where(member, peer);
  if (error == ECONNREFUSED) return "died or cannot be reached any more: nobody listens at " + at;
  return "cannot be reached: no way from here to " + at + " (" + std::strerror(error) + "); " + kOtherAddress;
}

// The network's, which may be back in a moment: a link that has just come up, a neighbour that is looked for still.
bool may_pass(int error) noexcept {
  return error == EHOSTUNREACH || error == ENETUNREACH || error == EHOSTDOWN || error == ENETDOWN || error == ETIMEDOUT;
}

std::string ends_connections(const Member& member, int peer) {
  return "died or cannot be reached any more: whoever listens at " + where(member, peer) +
         " ends every connection; it may be another program, or an older version of Tutti";
}

std::string has_left(const Member& member, int peer) {
  return "died or cannot be reached any more: whoever listens at " + where(member, peer) + " has no such group";
}

}  // namespace

const std::string& Endpoint::there_of(const Member& member, int peer) {
  static const std::string& unknown = *new std::string;  // never destroyed: the thread goes on while a process exits
  return member.known_addresses.empty() ? unknown : where(member, peer);
}

Endpoint::EndpointSet Endpoint::dialed_now() const {
  EndpointSet under_way;
  for (const Pending& p : pending_) {
    if (p.member->at(p.peer).state == State::kDialing) under_way.insert(where(*p.member, p.peer));
  }
  return under_way;
}

std::size_t Endpoint::room_for_dials() const noexcept {
  const auto dialing =
      std::ranges::count_if(pending_, [](const Pending& p) { return p.member->at(p.peer).state == State::kDialing; });
  const std::size_t most = std::max(kLeastDials, descriptor_limit() / 4);
  return most - std::min(most, static_cast<std::size_t>(dialing));
}

// Two dials to one endpoint at once would make two streams: the second waits for what becomes of the first.
bool Endpoint::must_queue(const Pending& pending, const EndpointSet& under_way) const {
  const std::string& there = where(*pending.member, pending.peer);
  return under_way.contains(there) && stream_to(there) == nullptr;
}

void Endpoint::start_dials(std::int64_t now_ms) {
  EndpointSet under_way = dialed_now();
  std::size_t room = room_for_dials();
  for (const auto& [member, peer, polled] : pending_) {
    if (room == 0) return;
    const Member::Peer& p = member->at(peer);
    if (member->known_addresses.empty() || p.state != State::kResting || p.rest_until_ms > now_ms) continue;
    if (must_queue({member, peer}, under_way)) continue;
    start_dial(*member, peer, now_ms);
    if (p.state != State::kDialing) continue;
    under_way.insert(where(*member, peer));
    --room;
  }
}

void Endpoint::start_dial(Member& member, int peer, std::int64_t now_ms) {
  Member::Peer& p = member.at(peer);
  const PeerAddress& address = member.known_addresses[static_cast<std::size_t>(peer)];
  if (p.unanswered_since_ms < 0) p.unanswered_since_ms = now_ms;
  UniqueFd socket = begin_connect(address.endpoint, silence_);
  if (socket) {
    Offer offer;
    offer.inlet = next_inlet_++;
    if (auto stream = stream_to(address.there)) {
      offer.stream = stream->far();
      p.link.expect(std::move(stream), offer.inlet);  // the listener writes as soon as it has agreed
    }
    p.dial.emplace(Handshake::dial(std::move(socket), member.self, peer, address.group, offer));
    if (!watching()) watched_ms_ = now_ms;
    p.watch = {};
    p.state = State::kDialing;
  } else if (out_of_resources(errno) || errno == EAGAIN || errno == EADDRNOTAVAIL) {  // the last: no port is left
    if (out_of_descriptors(errno)) p.wanting.store(true, std::memory_order_relaxed);
    rest_after_failure(member, peer, now_ms,
                       "cannot be reached: no descriptors, ports or memory left here: " + describe_errno(errno),
                       kMostExhaustedHere);
  } else {
    on_unreachable(member, peer, now_ms, errno);
  }
}

// Tried again where the reason may pass, for as long as a host may take to answer, with those that have queued behind
// this dial: the time that it took was theirs too.
void Endpoint::on_unreachable(Member& member, int peer, std::int64_t now_ms, int error) {
  Member::Peer& p = member.at(peer);
  if (!may_pass(error)) return give_up_dial(member, peer, no_way(member, peer, error));
  if (now_ms - p.unanswered_since_ms >= connect_timeout_.count()) return give_up_silent(member, peer, error);
  drop_dial(p);
  p.state = State::kResting;
  for_queued(where(member, peer), [&](Member& other, int its_peer) {
    Member::Peer& queued = other.at(its_peer);
    if (queued.unanswered_since_ms < 0) queued.unanswered_since_ms = p.unanswered_since_ms;
    queued.rest_until_ms = now_ms + std::min<std::int64_t>(kUnreachableRestMs, connect_timeout_.count());
  });
}

void Endpoint::advance_dials(std::int64_t now_ms) {
  for (std::size_t i = 0; i < pending_.size(); ++i) {
    const auto [member, peer, polled] = pending_[i];
    Member::Peer& p = member->at(peer);
    if (p.state != State::kDialing) continue;
    if (pollfds_[polled].revents != 0) p.dial->advance();
    const bool late =
        p.dial->state() == Handshake::State::kConnecting && p.unanswered_since_ms + connect_timeout_.count() <= now_ms;
    if (late) give_up_silent(*member, peer, ETIMEDOUT);
    if (!late && p.dial->over()) on_dial_over(*member, peer, now_ms);
  }
}

void Endpoint::for_queued(const std::string& there, const std::function<void(Member&, int)>& act) {
  for (const auto& [member, peer, polled] : pending_) {
    const bool queued = member->at(peer).state == State::kResting && !member->known_addresses.empty();
    if (queued && where(*member, peer) == there) act(*member, peer);
  }
}

void Endpoint::give_up_silent(Member& member, int peer, int error) {
  const auto silent = [&](Member& who, int its_peer) { give_up(who, its_peer, no_way(who, its_peer, error)); };
  const std::string there = where(member, peer);
  silent(member, peer);
  for_queued(there, silent);
}

// Whoever has hung up at our proof has said more than the dial's end.
void Endpoint::give_up_dial(Member& member, int peer, std::string why) {
  if (const std::string want = member.want_here(peer); !want.empty()) why += "; " + want;
  give_up(member, peer, left_at_our_proof(member, peer) ? other_secret(member, peer) : why);
}

void Endpoint::on_dial_over(Member& member, int peer, std::int64_t now_ms) {
  Member::Peer& p = member.at(peer);
  if (p.dial->state() != Handshake::State::kUnreachable) p.unanswered_since_ms = -1;
  switch (p.dial->state()) {
    case Handshake::State::kUnreachable:
      if (p.was_full) return give_up(member, peer, kNoDescriptorThere);  // and has ended by now
      return on_unreachable(member, peer, now_ms, p.dial->error());
    case Handshake::State::kAbsent:
      return give_up_dial(member, peer, has_left(member, peer));
    case Handshake::State::kForged:
      return give_up(member, peer, other_secret(member, peer));
    case Handshake::State::kOtherVersion:
      return give_up(member, peer, other_version(member, peer));
    case Handshake::State::kForeign:
      return give_up(member, peer, other_program(member, peer));
    case Handshake::State::kBroken:
      return rest_after_failure(
          member, peer, now_ms,
          left_at_our_proof(member, peer) ? other_secret(member, peer) : ends_connections(member, peer), kMostFailures);
    default:
      break;
  }
  const std::uint32_t far = p.dial->listeners_inlet();
  switch (p.dial->verdict()) {
    case Verdict::kAccept: {
      const auto stream = new_stream(*p.dial, true, where(member, peer));
      p.link.expect(stream, p.dial->offer().inlet);
      stream->adopt(p.dial->take_socket());  // last: what has a socket is told of a want of memory
      p.dial.reset();
      return bring_up(member, peer, far);
    }
    case Verdict::kShare:
      if (p.link.stream() == nullptr) return give_up(member, peer, other_secret(member, peer));  // it was not asked
      p.dial->seal();
      p.dial.reset();
      return bring_up(member, peer, far);
    case Verdict::kYield:
      drop_dial(p);
      p.state = State::kResting;
      p.rest_until_ms = now_ms + kYieldMs;
      return;
    case Verdict::kFull:
      p.was_full = true;
      return rest_after_failure(member, peer, now_ms, kNoDescriptorThere, kMostExhausted);
    case Verdict::kStarved:
      return give_up(member, peer, kStarvedThere);
    case Verdict::kRefuse:
      return give_up(member, peer, kConnectionGone);
    case Verdict::kGone:
      return give_up(member, peer, has_left(member, peer), p.dial->last_words());
  }
}

void Endpoint::rest_after_failure(Member& member, int peer, std::int64_t now_ms, std::string why, int most) {
  Member::Peer& p = member.at(peer);
  if (++p.failures > most) return give_up(member, peer, why);
  drop_dial(p);
  p.state = State::kResting;
  p.rest_until_ms = now_ms + std::min(kFirstRestMs << (p.failures - 1), kLongestRestMs);
}

void Endpoint::drop_dial(Member::Peer& peer) {
  peer.dial.reset();
  if (peer.state != State::kDown) peer.link.expect(nullptr, 0);  // its user reads the words of one that is down
}

void Endpoint::give_up(Member& member, int peer, const std::string& why, LastWords words) {
  Member::Peer& p = member.at(peer);
  member.options.logger.info("tcp transport: rank " + std::to_string(peer) + " " + why);
  member.set_why(peer, why);  // before the link ends: whoever sees that asks why
  drop_dial(p);
  p.state = State::kDown;
  p.link.fail(words);
  member.tell(peer);
}

// A dialer proves itself only to a listener whose proof is right. One that says it is `peer` and hangs up at ours has
// another secret; it has given up, and its end must not be taken for a death. Only a hint, since it has proved nothing:
// asked when this rank's own dial has failed.
bool Endpoint::left_at_our_proof(Member& member, int peer) {
  return member.at(peer).left_at_our_proof || std::any_of(strangers_.begin(), strangers_.end(), [&](Stranger& s) {
           return s.handshake.self() == member.self && s.handshake.peer() == peer &&
                  s.handshake.advance() == Handshake::State::kBroken;
         });
}

// Streams.

std::shared_ptr<Stream> Endpoint::stream_to(const std::string& there) const {
  for (const Known& known : streams_) {
    if (known.there.empty() || known.there != there) continue;
    auto stream = known.stream.lock();
    if (stream != nullptr && !stream->doubtful()) return stream;
  }
  return nullptr;
}

std::shared_ptr<Stream> Endpoint::stream_named(const StreamName& near) const {
  if (near == StreamName{}) return nullptr;
  for (const Known& known : streams_) {
    auto stream = known.stream.lock();
    if (stream != nullptr && stream->near() == near && !stream->doubtful()) return stream;
  }
  return nullptr;
}

std::shared_ptr<Stream> Endpoint::new_stream(Handshake& handshake, bool dialed, std::string there) {
  auto stream = std::make_shared<Stream>(
      handshake.stream_name(dialed), handshake.stream_name(!dialed),
      Stream::Care{[this] { look(); }, [this](Lingering socket) { outlive(std::move(socket)); }});
  if (!watching()) watched_ms_ = now_in_ms();
  make_room();
  streams_.push_back({stream, std::move(there)});
  return stream;
}

// Who has accepted a connection may learn only now where the dialer's endpoint is.
void Endpoint::name_stream(const Member& member, int peer) {
  const auto& stream = member.peers[static_cast<std::size_t>(peer)]->link.stream();
  for (Known& known : streams_) {
    if (stream != nullptr && known.there.empty() && known.stream.lock() == stream) known.there = there_of(member, peer);
  }
}

void Endpoint::bring_up(Member& member, int peer, std::uint32_t far) {
  Member::Peer& p = member.at(peer);
  p.link.attach(far);
  p.state = State::kUp;
  p.wanting.store(false, std::memory_order_relaxed);
  member.tell(peer);
}

void Endpoint::flush_streams() {
  for (const Known& known : streams_) {
    const auto stream = known.stream.lock();
    if (stream != nullptr && stream->has_rest()) stream->flush();
  }
}

void Endpoint::outlive(Lingering socket) {
  {
    const std::lock_guard lock(lingering_mutex_);
    lingering_.push_back({std::move(socket), now_in_ms() + longest_linger_.count()});
  }
  look();
}

void Endpoint::look_at_lingering(std::int64_t now_ms) noexcept {
  const std::lock_guard lock(lingering_mutex_);
  std::erase_if(lingering_,
                [now_ms](Outlived& outlived) { return outlived.socket.over() || outlived.until_ms <= now_ms; });
}

bool Endpoint::anything_lingers() const noexcept {
  const std::lock_guard lock(lingering_mutex_);
  return !lingering_.empty();
}

// Streams, and dials that wait for the other end's words: keepalive says nothing of what is under way.
bool Endpoint::watching() const noexcept {
  return !streams_.empty() || std::ranges::any_of(pending_, [](const Pending& p) { return awaits_words(p); });
}

bool Endpoint::awaits_words(const Pending& pending) noexcept {
  const Member::Peer& p = pending.member->at(pending.peer);
  return p.state == State::kDialing && p.dial->state() == Handshake::State::kTalking;
}

void Endpoint::watch_hosts(std::int64_t now_ms) {
  const std::int64_t interval_ms = now_ms - watched_ms_;
  if (interval_ms < heartbeat_.count() || !watching()) return;
  watched_ms_ = now_ms;
  const auto silent = [&](PeerWatch& watch, int fd) {
    return watch.silent(fd, silence_, static_cast<std::uint32_t>(interval_ms));
  };
  for (Known& known : streams_) {
    const auto stream = known.stream.lock();
    if (stream == nullptr || stream->dead() || !silent(known.watch, stream->fd())) continue;
    stream->cut(kSilentThere);
    logger_.info("tcp transport: the host at " + known.there + " does not answer any more");
  }
  for (const Pending& pending : pending_) {
    Member::Peer& p = pending.member->at(pending.peer);
    if (awaits_words(pending) && silent(p.watch, p.dial->fd())) give_up(*pending.member, pending.peer, kSilentThere);
  }
}

}  // namespace tutti::tcp
