// Messages with file descriptors between processes of one user on one machine: abstract Unix sockets that keep message
// boundaries (SOCK_SEQPACKET), never block and are closed on exec.
//
// Everybody on the machine can see an abstract name (/proc/net/unix) and connect to it. So both sides ask the kernel
// whose process is at the other end (SO_PEERCRED) before a byte is read or sent: its effective user must be this
// process's. Root is no exception: it needs no socket to read this memory, and a rank of another user is better told.
//
// Ownership: every descriptor is a UniqueFd; those of a message that is dropped are closed. Thread rule: free functions
// over descriptors that one thread uses at a time. Linux only.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/unique_fd.h"

namespace tutti {

// The kernel passes at most 253 descriptors a message (SCM_MAX_FD).
inline constexpr std::size_t kMaxMessageFds = 253;
inline constexpr std::size_t kMaxMessageBytes = 32768;

enum class SocketStatus {
  kOk,
  kAgain,     // not now: poll and come back. Also when too many descriptors are under way in the whole system
  kEnd,       // the other side is gone, or its message is not one of ours
  kNoRoom,    // of receive_message: the message is there, its descriptors found no room in this process and are lost
  kStranger,  // of connect_local: another user's process listens there
  kRefused,   // of connect_local: nobody listens there
};

// A new listening socket of this (abstract) name; empty, with errno, when the system refuses.
UniqueFd listen_local(std::string_view name) noexcept;

// The next connection. Another user's is closed, and counts as one so that the caller can bound them.
enum class AcceptStatus { kOk, kNone, kStranger, kExhausted /* no descriptor left, whether or not there is one */ };
struct Accepted {
  AcceptStatus status = AcceptStatus::kNone;
  UniqueFd socket;
  int error = 0;  // kExhausted: errno
};
Accepted accept_local(int listener) noexcept;

// A new socket to connect (empty, with errno, when the system refuses), and one attempt to do it; kAgain while the
// listener's backlog is full. After kStranger the socket is good for nothing but to be closed.
UniqueFd new_local_socket() noexcept;
SocketStatus connect_local(int socket, std::string_view name) noexcept;

SocketStatus send_message(int socket, std::string_view bytes, std::span<const int> fds) noexcept;

struct LocalMessage {
  std::string bytes;
  std::vector<UniqueFd> fds;
  int error = 0;  // kEnd: errno where the connection failed
};
// Nothing that was sent before the other side closed is lost to kEnd, unless the connection failed.
SocketStatus receive_message(int socket, LocalMessage& message);

// The process at the other end when the connection was made: its pid as this process sees it (0 if it does not), and
// a pidfd that cannot mean another process. Where the kernel lacks SO_PEERPIDFD (before 6.5) the pidfd was opened by
// number: then only a later sign of life over the socket shows that it means this process.
struct LocalPeer {
  pid_t pid = 0;
  UniqueFd pidfd;
};
LocalPeer local_peer(int socket) noexcept;

// Numbers a PID namespace; 0 when unknown.
std::uint64_t pid_namespace() noexcept;

}  // namespace tutti
