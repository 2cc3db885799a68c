// TCP sockets of the store: nonblocking, closed on exec, no Nagle delay.
//
// Ownership: UniqueFd. Thread rule: free functions over descriptors that one thread uses at a time.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace tutti {

// Listens on `port` (0: any free one): of the loopback interface if `host` names it ("localhost", "127.0.0.1", "::1"),
// else of all interfaces, since a host's own name may mean another address to the other hosts. Throws
// Error(kExhausted) naming the port and, if it is taken, what to do.
UniqueFd listen_tcp(const std::string& host, std::uint16_t port);

std::uint16_t port_of(int socket);

// One attempt at every address of `host`, bounded by the deadline. Empty on failure, of the last address.
struct ConnectFailure {
  std::string why;
  bool refused = false;    // its machine answers, but nobody listens
  bool exhausted = false;  // there is no descriptor for it, here or there
};
UniqueFd connect_tcp(const std::string& host, std::uint16_t port, Deadline& deadline, ConnectFailure& failure);

UniqueFd accept_tcp(int listener, bool& exhausted) noexcept;

// Waits until `socket` is ready for `events` of poll(); false when the deadline came first.
bool wait_ready(int socket, short events, Deadline& deadline) noexcept;

}  // namespace tutti
