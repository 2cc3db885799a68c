// HostLeader's poll loop: who connects, what the connections say, who leaves and who dies.
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/interruption.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_leader.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMostStrangers = 64;  // beyond the members that are awaited
constexpr std::int64_t kLookEveryNs = 100'000'000;
constexpr int kRefusals = 4;
constexpr int kAcceptsATurn = 256;  // then the members get their turn, however many strangers come
constexpr int kExhaustedPollMs = 10;
constexpr std::int64_t kBearNs = 250'000'000;  // other threads may give descriptors back

}  // namespace

// The descriptors are gathered anew each time: a handshake takes few turns.
void HostLeader::poll_once(bool accepting, int most_ms) {
  std::vector<pollfd> fds;
  const auto add = [&fds](const auto& fd) { fds.push_back({fd.get(), POLLIN, 0}); };  // negative ones are ignored
  for (const Member& m : members_) add(m.socket);
  for (const Member& m : members_) {
    if (m.entry.rank == context_.leader)
      fds.push_back({-1, 0, 0});
    else
      add(m.pidfd);
  }
  if (accepting) {
    for (const UnforkedFd& stranger : strangers_) add(stranger);
    if (!accept_exhausted_) add(listener_);
  }
  const std::int64_t left_ms = deadline_.remaining_ns() / 1'000'000 + 1;
  if (accept_exhausted_) most_ms = std::min(most_ms, kExhaustedPollMs);
  const int ready = ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(left_ms, most_ms)));
  if (ready > 0) {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (fds[i].revents != 0) read_member(members_[i]);
    }
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (fds[members_.size() + i].revents == 0) continue;
      throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(members_[i].entry.rank) + " (process " +
                                            std::to_string(members_[i].visible_pid) + ") died while communicator \"" +
                                            context_.request.id + "\" was forming");
    }
  }
  throw_if_interrupted(context_.forming());
  if (!accepting) return;
  std::erase_if(strangers_, [&](UnforkedFd& stranger) { return read_stranger(stranger); });
  accept_all();
}

void HostLeader::accept_all() {
  const std::size_t most = kMostStrangers + ranks_in(State::kAwaited).size();
  for (int turn = 0; turn < kAcceptsATurn; ++turn) {
    Accepted accepted;
    UnforkedFd socket = UnforkedFd::opened_by([&] {
      accepted = accept_local(listener_.get());
      return std::move(accepted.socket);
    });
    accept_exhausted_ = accepted.status == AcceptStatus::kExhausted;
    if (accept_exhausted_) return bear_exhaustion(accepted.error);
    exhausted_since_ns_ = 0;
    if (accepted.status == AcceptStatus::kNone) return;
    if (accepted.status == AcceptStatus::kStranger) continue;
    if (read_stranger(socket)) continue;
    if (strangers_.size() >= most) strangers_.pop_front();
    strangers_.push_back(std::move(socket));
  }
}

// The strangers give their descriptors up, and the listener rests for a moment. Members that wait at it cannot tell why
// nobody answers: when that lasts it is an error for all.
void HostLeader::bear_exhaustion(int error) {
  strangers_.clear();
  pollfd listener{listener_.get(), POLLIN, 0};
  if (::poll(&listener, 1, 0) != 1) {
    exhausted_since_ns_ = 0;
  } else if (exhausted_since_ns_ == 0) {
    exhausted_since_ns_ = now_ns();
  } else if (now_ns() - exhausted_since_ns_ > kBearNs) {
    throw_exhausted(error);
  }
}

void HostLeader::throw_exhausted(int error) const {
  throw_error(ErrorKind::kExhausted, place_of(context_) +
                                         " has no descriptors for the ranks of its host, so communicator \"" +
                                         context_.request.id + "\" cannot form: " + describe_errno(error));
}

// True when it is none any more: it became a member, it left, or what it said is not one of ours.
bool HostLeader::read_stranger(UnforkedFd& stranger) {
  LocalMessage message;
  const SocketStatus status = receive_message(stranger.get(), message);
  if (status == SocketStatus::kAgain) return false;
  if (status == SocketStatus::kOk || status == SocketStatus::kNoRoom) admit(stranger, message, status);
  return true;
}

void HostLeader::admit(UnforkedFd& stranger, LocalMessage& message, SocketStatus status) {
  const int rank = claimed_rank(message.bytes);
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&](const Member& m) { return m.entry.rank == rank && m.state == State::kAwaited; });
  if (found == members_.end()) return;
  const std::optional<HostEntry> entry = HostPair(context_, rank).read_hello(message.bytes);
  if (entry && status == SocketStatus::kNoRoom) throw_exhausted(EMFILE);
  if (!entry || message.fds.size() != (entry->has_arena ? 1u : 0u)) return;
  LocalPeer peer = local_peer(stranger.get());
  // In one PID namespace the number must be the one that the kernel gives: nobody passes on another's proof.
  if (entry->pid_ns == pid_namespace() && entry->pid != peer.pid) return;
  found->entry = *entry;
  found->visible_pid = peer.pid;
  found->pidfd = std::move(peer.pidfd);  // means this process, also when opened by number: its Ack comes later
  if (entry->has_arena) found->arena = std::move(message.fds.front());
  found->socket = std::move(stranger);
  found->state = State::kKnown;
}

// A member says one thing only: the Ack. Anything else, or the end, closes its connection.
void HostLeader::read_member(Member& member) {
  LocalMessage message;
  const SocketStatus status = receive_message(member.socket.get(), message);
  if (status == SocketStatus::kAgain) return;
  if (status == SocketStatus::kOk && member.state == State::kKnown && member.batches_sent > 0 &&
      HostPair(context_, member.entry.rank).read_ack(message.bytes, challenge_)) {
    member.state = State::kMapped;
    return;
  }
  member.socket.reset();
}

// A member listens until its Hello is sent, or the store says that it leaves. Both are seen within the looks that
// follow, so whose socket is closed at so many is neither.
void HostLeader::look_for_dead() {
  for (Member& m : members_) {
    const int rank = m.entry.rank;
    if (m.state != State::kAwaited || !can_reach(context_, rank)) continue;
    const UniqueFd probe = new_local_socket();
    if (!probe) return;
    const std::string& name = context_.cards[static_cast<std::size_t>(rank)].socket_name;
    m.refusals = connect_local(probe.get(), name) == SocketStatus::kRefused ? m.refusals + 1 : 0;
    if (m.refusals < kRefusals) continue;
    throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(rank) + " died while communicator \"" +
                                          context_.request.id + "\" was forming, or gave up: its own output says why");
  }
}

// Members that cannot go on, or go on without shared memory, say so in the store: looked at seldom, since those that
// can are through long before.
void HostLeader::look_for_leavers() {
  if (now_ns() < look_at_ns_) return;
  look_at_ns_ = now_ns() + kLookEveryNs;
  look_for_dead();
  const std::string& id = context_.request.id;
  throw_if_told(context_.store, id, context_.leader);
  const std::int64_t left = context_.store.add(left_count_key(id, context_.leader), 0);
  if (left == left_seen_) return;
  left_seen_ = left;
  for (Member& m : members_) {
    if (m.state != State::kAwaited && m.state != State::kKnown) continue;
    if (context_.store.add(left_key(id, m.entry.rank), 0) == 0) continue;
    m.state = State::kOut;
    m.socket.reset();
  }
}

}  // namespace tutti
