#include "bootstrap/host_leader.h"

#include <fcntl.h>
#include <poll.h>

#include <algorithm>
#include <new>

#include "base/interruption.h"
#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::int64_t kFirstLookNs = 100'000'000;  // by then the usual handshake is over
constexpr int kPollMs = 100;

std::chrono::milliseconds ninety_percent(const HostContext& context) {
  const std::int64_t ms = context.remaining_ms();
  return std::chrono::milliseconds(ms - ms / 10);
}

}  // namespace

HostLeader::HostLeader(const HostContext& context, UnforkedFd listener)
    : context_(context),
      deadline_(Deadline::after(ninety_percent(context))),
      listener_(std::move(listener)),
      challenge_(random_nonce()),
      look_at_ns_(now_ns() + kFirstLookNs) {
  for (const int rank : context.ranks) {
    Member& member = members_.emplace_back();
    member.entry.rank = rank;
    if (rank != context.leader) continue;
    member.entry = own_entry(context.request);
    member.visible_pid = member.entry.pid;
    member.pidfd = open_pidfd(member.entry.pid);
    if (member.entry.has_arena) member.arena = UniqueFd(::fcntl(context.request.arena_fd, F_DUPFD_CLOEXEC, 0));
    member.state = State::kMapped;
  }
}

HostVerdict HostLeader::run(HostGroup& group) {
  HostVerdict verdict;
  try {
    gather();
    hand_out();
    verdict.ranks = ranks_in(State::kMapped);
  } catch (const Error& e) {
    if (waits_in_fork()) throw;  // by a handler of a signal: the members are the parent's
    verdict.kind = e.kind();
    verdict.failure = e.what();
  } catch (const std::bad_alloc&) {
    verdict.kind = ErrorKind::kExhausted;
    verdict.failure = place_of(context_) + " has no memory to form communicator \"" + context_.request.id + "\"";
  }
  publish(verdict);
  if (verdict.ok() && verdict.ranks.size() > 1) build_group(group);
  group.alone_because = no_segment_;
  return verdict;
}

std::vector<int> HostLeader::ranks_in(State state) const {
  std::vector<int> ranks;
  for (const Member& m : members_) {
    if (m.state == state) ranks.push_back(m.entry.rank);
  }
  return ranks;
}

// A known member without a socket is leaving (it will say so in the store) or dying (its pidfd will tell).
std::vector<int> HostLeader::ranks_not_known() const {
  std::vector<int> ranks;
  for (const Member& m : members_) {
    if (m.state == State::kAwaited || (m.state == State::kKnown && !m.socket)) ranks.push_back(m.entry.rank);
  }
  return ranks;
}

void HostLeader::gather() {
  for (std::vector<int> missing = ranks_not_known(); !missing.empty(); missing = ranks_not_known()) {
    if (deadline_.expired()) {
      throw_error(ErrorKind::kTimeout, name_ranks(missing) + " did not reach rank " + std::to_string(context_.leader) +
                                           " of the same host within " +
                                           std::to_string(context_.request.timeout.count()) + " ms (communicator \"" +
                                           context_.request.id + "\")");
    }
    poll_once(/*accepting=*/true, kPollMs);
    look_for_leavers();
  }
  strangers_.clear();
  listener_.reset();
}

// Without a segment there is no shared memory: every rank is then a host of its own.
void HostLeader::choose_segment() {
  for (std::size_t i = 0; i < members_.size(); ++i) {
    if (members_[i].state != State::kOut) welcomed_.push_back(i);
  }
  if (welcomed_.size() < 2) return;
  segment_bytes_ = context_.request.segment_bytes(static_cast<int>(welcomed_.size()));
  try {
    segment_ = create_memfd("tutti", segment_bytes_);
  } catch (const Error& e) {
    no_segment_ = e.what();
    for (Member& m : members_) {
      if (m.state == State::kKnown) m.state = State::kOut;
    }
  }
}

void HostLeader::hand_out() {
  choose_segment();
  for (;;) {
    bool sent = true;
    for (Member& m : members_) {
      if (m.state == State::kKnown && m.socket) sent &= send_batches(m);
    }
    const std::vector<int> missing = ranks_in(State::kKnown);
    if (missing.empty()) return;
    if (deadline_.expired()) {
      throw_error(ErrorKind::kTimeout, name_ranks(missing) + " did not map the segment of the host of rank " +
                                           std::to_string(context_.leader) + " within " +
                                           std::to_string(context_.request.timeout.count()) + " ms (communicator \"" +
                                           context_.request.id + "\")");
    }
    poll_once(/*accepting=*/false, sent ? kPollMs : 1);
    look_for_leavers();
  }
}

std::uint32_t HostLeader::batches() const noexcept {
  return static_cast<std::uint32_t>((welcomed_.size() + kEntriesPerBatch - 1) / kEntriesPerBatch);
}

HostWelcome HostLeader::batch_for(const Member& member, std::uint32_t batch, std::vector<int>& fds) const {
  HostWelcome welcome{batch, batches(), segment_bytes_, challenge_, {}};
  fds.clear();
  if (batch == 0) fds.push_back(segment_.get());
  const std::size_t first = batch * kEntriesPerBatch;
  const std::size_t end = std::min(welcomed_.size(), first + kEntriesPerBatch);
  for (std::size_t i = first; i < end; ++i) {
    const Member& other = members_[welcomed_[i]];
    HostEntry entry = other.entry;
    // Within one process both are at hand already.
    const bool elsewhere = !entry.same_process(member.entry);
    entry.has_pidfd = elsewhere && other.pidfd;
    entry.has_arena = elsewhere && other.arena;
    if (entry.has_pidfd) fds.push_back(other.pidfd.get());
    if (entry.has_arena) fds.push_back(other.arena.get());
    welcome.entries.push_back(entry);
  }
  return welcome;
}

// False when some are still to be sent.
bool HostLeader::send_batches(Member& member) {
  const HostPair pair(context_, member.entry.rank);
  std::vector<int> fds;
  while (member.batches_sent < batches()) {
    const std::string bytes = pair.welcome(batch_for(member, member.batches_sent, fds));
    const SocketStatus status = send_message(member.socket.get(), bytes, fds);
    if (status == SocketStatus::kAgain) return false;
    if (status == SocketStatus::kEnd) {
      member.socket.reset();
      return true;
    }
    ++member.batches_sent;
  }
  return true;
}

void HostLeader::publish(const HostVerdict& verdict) {
  bool all_told = verdict.ok() && context_.whole_world;
  for (Member& m : members_) {
    if (m.entry.rank == context_.leader) continue;
    const bool told = m.socket && send_message(m.socket.get(), HostPair(context_, m.entry.rank).verdict(verdict), {}) ==
                                      SocketStatus::kOk;
    all_told &= told && m.state == State::kMapped;
    m.socket.reset();
  }
  if (all_told) return;  // nobody looks into the store: one operation saved
  try {
    context_.store.set(verdict_key(context_.request.id, context_.leader), encode(verdict));
  } catch (const Error&) {
    if (verdict.ok()) throw;
    // The verdict is an error already, and the better one.
  }
}

void HostLeader::build_group(HostGroup& group) {
  const HostEntry* self = nullptr;
  for (const Member& m : members_) {
    if (m.entry.rank == context_.leader) self = &m.entry;
  }
  group.members.clear();
  for (Member& m : members_) {
    if (m.state != State::kMapped) continue;
    const bool elsewhere = !m.entry.same_process(*self);
    if (m.entry.rank == context_.leader) group.index = static_cast<int>(group.members.size());
    HostMember& out = group.members.emplace_back();
    out.rank = m.entry.rank;
    out.pid = m.visible_pid;
    out.process = {m.entry.pid_ns, m.entry.pid};
    out.arena_id = m.entry.arena_id;
    out.arena_bytes = m.entry.arena_bytes;
    if (elsewhere) out.pidfd = std::move(m.pidfd);
    if (elsewhere) out.arena = std::move(m.arena);
  }
  group.segment = std::move(segment_);
  group.segment_bytes = segment_bytes_;
  group.segment_ranks = static_cast<int>(welcomed_.size());
}

}  // namespace tutti
