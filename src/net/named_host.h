// TCP at a host that a user names: where a job's store listens, and is found.
//
// Ownership: UnforkedFd. Thread rule: free functions.
#pragma once

#include <cstdint>
#include <string>

#include "base/clock.h"
#include "base/unforked_fd.h"

namespace tutti {

// Listens on `port` (0: any free one): of the loopback interface if `host` names it ("localhost", "127.0.0.1", "::1"),
// else of all interfaces, since a host's own name may mean another address to the other hosts. Throws
// Error(kExhausted) naming the port and, if it is taken, what to do.
UnforkedFd listen_tcp(const std::string& host, std::uint16_t port);

// One attempt at every address of `host`, bounded by the deadline: a silent one has its part of what is left, a second
// at least. Empty on failure, of the last address.
struct ConnectFailure {
  std::string why;
  bool refused = false;    // its machine answers, but nobody listens
  bool exhausted = false;  // there is no descriptor for it, here or there
};
UnforkedFd connect_tcp(const std::string& host, std::uint16_t port, Deadline& deadline, ConnectFailure& failure);

}  // namespace tutti
