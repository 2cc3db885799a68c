// TCP sockets: nonblocking, closed on exec, without Nagle's delay; and how it is told that a peer's host is out of
// reach.
//
// Silence is judged by the kernel wherever it can, and for as long as the caller says:
// - An idle connection by keepalive: three unanswered probes. The kernel counts whole seconds, so it takes 4 s at
//   least.
// - Outstanding bytes by PeerWatch below. The kernel's own limit on retransmissions lies beyond it. TCP_USER_TIMEOUT
//   would be the kernel's means, but it also ends connections whose peer keeps answering with a closed window, that is,
//   a peer that is merely stopped or busy computing; and keepalive sends no probes while bytes are outstanding.
// A stopped process is no dead one: its kernel goes on answering, and only a call's deadline decides over it.
// No heartbeat of our own is sent: a thread that sends them can starve while its process is well, and the other way
// round.
//
// Ownership: descriptors come back owned. Thread rule: free functions without state; a PeerWatch has one user.
#pragma once

#include <chrono>
#include <cstdint>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "net/address.h"

namespace tutti {

// Of a connection whose silence is judged as the system is set: keepalive after two hours.
inline constexpr std::chrono::milliseconds kSystemsSilence{0};

// A listening socket at `address` (port 0: any), also where a job that has ended has left its port in TIME_WAIT. The
// wildcard address of IPv6 serves IPv4 too. On failure empty, and errno says why.
UniqueFd try_listen_at(const SocketAddress& address) noexcept;
// The same; throws Error(kExhausted).
UniqueFd listen_at(const SocketAddress& address);

// A socket that has begun to connect. On failure empty, and errno says why.
// `silence`: how long the peer's host may say nothing.
UniqueFd begin_connect(const SocketAddress& address, std::chrono::milliseconds silence) noexcept;

// The next connection; empty, with errno, when there is none.
UniqueFd accept_from(int listener, std::chrono::milliseconds silence) noexcept;

// Of such an errno: a socket found no descriptor; or no memory either.
bool out_of_descriptors(int error) noexcept;
bool out_of_resources(int error) noexcept;

// Waits until `socket` is ready for `events` of poll(); false when the deadline came first.
bool wait_ready(int socket, short events, Deadline& deadline) noexcept;

// Ends a connection so that bytes on their way still arrive: a close with unread bytes would send a reset, and that
// overtakes them.
void close_gently(UniqueFd fd) noexcept;

// After shutdown(): reads and forgets what has come. True when nothing that was sent can be lost any more, so that the
// socket may be closed: the peer's kernel has it all, or the connection has failed.
bool has_arrived(int fd) noexcept;

// Sees that a peer's host no longer answers although bytes are outstanding.
class PeerWatch {
 public:
  // True once at least kUnanswered transmissions in a row, over at least `silence`, have not been acknowledged in any
  // way. Asked about every half second; `interval_ms` is the time since it was asked last.
  bool silent(int fd, std::chrono::milliseconds silence, std::uint32_t interval_ms) noexcept;

 private:
  static constexpr std::uint32_t kUnanswered = 3;

  std::uint32_t retransmissions_when_heard_ = 0;
};

}  // namespace tutti
