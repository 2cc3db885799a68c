#include "bootstrap/host_joiner.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/interruption.h"
#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr int kRetryMs = 1;

}  // namespace

std::optional<HostVerdict> HostJoiner::run(HostGroup& group) {
  self_ = own_entry(context_.request);
  const std::array<int, 1> arena = {context_.request.arena_fd};
  const std::span<const int> fds = self_.has_arena ? std::span<const int>(arena) : std::span<const int>{};
  std::optional<HostVerdict> verdict;
  try {
    const SocketStatus connected = connect();
    if (connected == SocketStatus::kRefused && can_reach(context_, context_.leader)) return last_words();
    if (connected == SocketStatus::kOk && say(pair_.hello(self_), fds)) {
      listener_.reset();
      verdict = listen();
    }
  } catch (const Error& error) {
    // Else the leader would wait for this rank; whoever goes on without it hears why in the next exchange.
    if (error.kind() == ErrorKind::kAborted && !waits_in_fork()) leave();
    throw;
  }
  if (!verdict) {
    leave();
    return std::nullopt;
  }
  socket_.reset();
  const bool named = std::binary_search(verdict->ranks.begin(), verdict->ranks.end(), context_.request.rank);
  if (verdict->ok() && named && verdict->ranks.size() > 1) build_group(*verdict, group);
  return verdict;
}

SocketStatus HostJoiner::connect() {
  const std::string& name = context_.cards[static_cast<std::size_t>(context_.leader)].socket_name;
  socket_ = UnforkedFd::opened_by(new_local_socket);
  if (!socket_) wanting_ = "socket: " + describe_errno(errno);
  if (!socket_) return SocketStatus::kEnd;
  for (;;) {
    const SocketStatus status = connect_local(socket_.get(), name);
    if (status == SocketStatus::kOk) leader_ = local_peer(socket_.get());
    if (status != SocketStatus::kAgain || context_.deadline.expired()) return status;
    ::poll(nullptr, 0, kRetryMs);  // the listener's backlog is full
    throw_if_interrupted(context_.forming());
  }
}

// Of a leader that listens no more, though this rank has not come: it has failed, and said why before where it could,
// or it is dead.
HostVerdict HostJoiner::last_words() {
  constexpr std::int64_t kAMomentMs = 500;
  const std::chrono::milliseconds moment(std::clamp<std::int64_t>(context_.remaining_ms(), 1, kAMomentMs));
  try {
    const std::string blob = context_.store.get(verdict_key(context_.request.id, context_.leader), moment);
    HostVerdict verdict = verdict_in_store(context_, context_.leader, blob);
    if (!verdict.ok()) return verdict;
    throw_forged(context_, context_.leader,
                 "a list without rank " + std::to_string(context_.request.rank) + ", which has not been asked");
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::kTimeout) throw;
  }
  throw_member_died(context_, context_.leader, ", or gave up: its own output says why");
}

bool HostJoiner::say(std::string_view bytes, std::span<const int> fds) {
  for (;;) {
    const SocketStatus status = send_message(socket_.get(), bytes, fds);
    if (status != SocketStatus::kAgain) return status == SocketStatus::kOk;
    if (context_.deadline.expired()) return false;
    ::poll(nullptr, 0, kRetryMs);
    throw_if_interrupted(context_.forming());
  }
}

// Until the socket has something. Throws when time is over, or when the leader has died and left nothing to read.
void HostJoiner::wait_for_message() {
  constexpr std::int64_t kLookEveryNs = 500'000'000;
  std::int64_t look_at_ns = now_ns() + kLookEveryNs;
  std::array<pollfd, 2> fds = {{{socket_.get(), POLLIN, 0}, {leader_.pidfd.get(), POLLIN, 0}}};
  for (;;) {
    const std::int64_t left_ms = context_.remaining_ms() + 1;
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<std::int64_t>(left_ms, kAskEveryMs)));
    if (fds[0].revents != 0) return;
    throw_if_interrupted(context_.forming());
    if (fds[1].revents != 0) throw_member_died(context_, context_.leader);
    if (now_ns() >= look_at_ns) {
      throw_if_told(context_.store, context_.request.id, context_.request.rank);
      look_at_ns = now_ns() + kLookEveryNs;
    }
    if (context_.deadline.expired()) {
      throw_error(ErrorKind::kTimeout, "rank " + std::to_string(context_.leader) + " did not answer rank " +
                                           std::to_string(context_.request.rank) + " of the same host within " +
                                           std::to_string(context_.request.timeout.count()) + " ms (communicator \"" +
                                           context_.request.id + "\")");
    }
  }
}

std::optional<HostVerdict> HostJoiner::listen() {
  LocalMessage message;
  for (;;) {
    const SocketStatus status = receive_message(socket_.get(), message);
    if (status == SocketStatus::kEnd) {
      end_error_ = message.error;
      return std::nullopt;
    }
    if (status == SocketStatus::kNoRoom) {
      wanting_ = "no room for the descriptors of shared memory: " + describe_errno(EMFILE);
      return std::nullopt;
    }
    if (status == SocketStatus::kAgain) {
      wait_for_message();
      continue;
    }
    if (auto verdict = pair_.read_verdict(message.bytes)) return verdict;
    const std::optional<HostWelcome> welcome = pair_.read_welcome(message.bytes);
    if (!welcome || !take_welcome(*welcome, std::move(message.fds))) return std::nullopt;
    if (batches_ == welcome->batches && !map_and_ack(*welcome)) return std::nullopt;
  }
}

bool HostJoiner::take_welcome(const HostWelcome& welcome, std::vector<UniqueFd> fds) {
  if (welcome.batch != batches_ || welcome.batch >= welcome.batches) return false;
  ++batches_;
  std::size_t next = 0;
  const auto take = [&](bool has, UniqueFd& into) {
    if (has && next < fds.size()) into = std::move(fds[next]);
    next += has ? 1 : 0;
  };
  take(welcome.batch == 0, segment_);
  for (const HostEntry& entry : welcome.entries) {
    Other& other = others_.emplace_back();
    other.entry = entry;
    take(entry.has_pidfd, other.pidfd);
    take(entry.has_arena, other.arena);
    // Who answers here must be the process that listened, where numbers can be compared.
    if (entry.rank == context_.leader && entry.pid_ns == self_.pid_ns && entry.pid != leader_.pid) return false;
  }
  segment_bytes_ = welcome.segment_bytes;
  return next == fds.size();
}

// The proof that memory can be shared: the descriptor came and maps. Whoever uses the group maps it again.
bool HostJoiner::map_and_ack(const HostWelcome& welcome) {
  try {
    if (!keeps_bytes(segment_.get(), segment_bytes_)) {
      wanting_ = "the memory that rank " + std::to_string(context_.leader) +
                 " offers could shrink under its readers, or is smaller than it says";
      return false;
    }
    Mapping::shared(segment_.get(), segment_bytes_);
  } catch (const Error& e) {
    wanting_ = e.what();
    return false;
  }
  acked_ = say(pair_.ack(welcome.challenge), {});
  return acked_;
}

void HostJoiner::build_group(const HostVerdict& verdict, HostGroup& group) {
  group.members.clear();
  for (Other& other : others_) {
    if (!std::binary_search(verdict.ranks.begin(), verdict.ranks.end(), other.entry.rank)) continue;
    if (other.entry.rank == context_.request.rank) group.index = static_cast<int>(group.members.size());
    HostMember& member = group.members.emplace_back();
    member.rank = other.entry.rank;
    member.pid = other.entry.pid_ns == self_.pid_ns ? other.entry.pid : 0;
    member.process = {other.entry.pid_ns, other.entry.pid};
    member.pidfd = std::move(other.pidfd);
    member.arena = std::move(other.arena);
    member.arena_id = other.entry.arena_id;
    member.arena_bytes = other.entry.arena_bytes;
  }
  group.segment = std::move(segment_);
  group.segment_bytes = segment_bytes_;
  group.segment_ranks = static_cast<int>(others_.size());
  if (group.members.size() != verdict.ranks.size()) {
    throw_error(ErrorKind::kInternal,
                "rank " + std::to_string(context_.leader) + " counts ranks in that it never named");
  }
}

// What came goes at once: whoever is alone needs descriptors for connections.
void HostJoiner::leave() {
  socket_.reset();
  segment_.reset();
  others_.clear();
  const std::string& id = context_.request.id;
  context_.store.add(left_key(id, context_.request.rank), 1);
  context_.store.add(left_count_key(id, context_.leader), 1);
  listener_.reset();
}

}  // namespace tutti
