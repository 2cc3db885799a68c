// Every rank of a host gives one file descriptor to every other process, over Unix sockets whose names pass through the
// store. Both ends prove the group's secret by HMAC, so a stranger who finds the socket gets nothing.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tutti/store.h"

namespace tutti::cuda {

// An abstract Unix socket that serves this rank's descriptor. Made first, so that its name can travel in the rank's
// card.
struct FdServer {
  std::string name;
  UniqueFd listener;
};
FdServer make_fd_server();

struct FdExchange {
  std::string id;  // of the communicator and of this exchange
  std::string secret;
  int rank = 0;
  std::vector<std::string> peer_sockets;  // by rank; empty: this rank, or one of this process, which needs none
  std::chrono::milliseconds timeout{};
};

// Collective among the processes. Returns a descriptor a peer, empty where its socket is. Throws Error(kTimeout) or
// Error(kUnsupported) that names the rank that cannot be reached.
std::vector<UniqueFd> exchange_fds(const FdServer& server, const FdExchange& request, int own_fd);

}  // namespace tutti::cuda
