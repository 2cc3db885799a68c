// The leader's side of a forming host: gathers the members, hands out the segment, and says who is in.
//
// One nonblocking poll loop, so that strangers on the socket neither disturb nor stall. A connection that says nothing
// is kept: it may be a member's that is slow, and who is dropped shares no memory with its host. There is a place for
// each member that is awaited and for some strangers; only beyond them the oldest goes. Without descriptors for its
// members it gives up for all of them. A member that cannot go on says so through the store; one that dies is seen by
// its pidfd, or, before its Hello, by nobody listening at its socket; one that does neither is named when the time is
// over.
//
// Ownership: its sockets and descriptors, until build_group() moves them out. Thread rule: one thread.
#pragma once

#include <deque>
#include <vector>

#include "base/unforked_fd.h"
#include "bootstrap/host_protocol.h"
#include "net/local_socket.h"

namespace tutti {

class HostLeader {
 public:
  HostLeader(const HostContext& context, UnforkedFd listener);

  // Runs the handshake and tells its outcome to whoever waits for it. Fills `group` when more than this rank is in.
  HostVerdict run(HostGroup& group);

 private:
  enum class State { kAwaited, kKnown, kMapped, kOut };
  struct Member {
    HostEntry entry;
    pid_t visible_pid = 0;  // as this process sees it
    State state = State::kAwaited;
    UnforkedFd socket;
    UniqueFd pidfd;
    UniqueFd arena;
    std::uint32_t batches_sent = 0;
    int refusals = 0;  // looks in a row that found nobody at its socket
  };

  void gather();
  void hand_out();
  void choose_segment();
  bool send_batches(Member& member);
  HostWelcome batch_for(const Member& member, std::uint32_t batch, std::vector<int>& fds) const;
  void poll_once(bool accepting, int most_ms);
  void accept_all();
  void bear_exhaustion(int error);
  [[noreturn]] void throw_exhausted(int error) const;
  bool read_stranger(UnforkedFd& stranger);
  void admit(UnforkedFd& stranger, LocalMessage& message, SocketStatus status);
  void read_member(Member& member);
  void look_for_leavers();
  void look_for_dead();
  void publish(const HostVerdict& verdict);
  void build_group(HostGroup& group);

  std::vector<int> ranks_in(State state) const;
  std::vector<int> ranks_not_known() const;
  std::uint32_t batches() const noexcept;

  const HostContext& context_;
  Deadline deadline_;  // earlier than the communicator's, so that members hear the verdict in time
  UnforkedFd listener_;
  bool accept_exhausted_ = false;
  std::int64_t exhausted_since_ns_ = 0;  // 0: nobody waits for want of a descriptor
  std::deque<UnforkedFd> strangers_;     // connections that have said nothing yet, oldest first
  std::vector<Member> members_;          // ascending by rank; the leader itself is one, mapped from the start
  std::vector<std::size_t> welcomed_;    // of members_: whose descriptors the Welcome carries
  UniqueFd segment_;
  std::uint64_t segment_bytes_ = 0;
  std::string no_segment_;  // why there is none, where there should be
  Nonce challenge_{};
  std::int64_t look_at_ns_ = 0;
  std::int64_t left_seen_ = 0;
};

}  // namespace tutti
