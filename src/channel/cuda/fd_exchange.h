// Every rank of a host gives file descriptors to every other process, over Unix sockets whose names pass through the
// store. Both ends must be one user's and prove the group's secret by HMAC, so a stranger who finds the socket gets
// nothing, and a rank of another job is not taken for one of this.
#pragma once

#include <chrono>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "tutti/store.h"

namespace tutti::cuda {

// An abstract Unix socket that serves this rank's descriptors. Made first, so that its name can travel in the rank's
// card.
struct FdServer {
  std::string name;
  UniqueFd listener;
};
FdServer make_fd_server();

struct FdExchange {
  struct Peer {
    std::string socket;
    std::size_t fds = 0;  // that it gives: 0 for this rank, for one of this process, and for one that has none
  };
  std::string id;  // of the communicator and of this exchange
  std::string secret;
  int rank = 0;
  std::vector<Peer> peers;  // by rank
  int clients = 0;          // ranks that fetch this rank's descriptors
  std::chrono::milliseconds timeout{};
  // If there is one, called twice a second while this rank waits, which ends by the KnownToAll that it throws: for
  // those who hear of a rank's failure elsewhere. On the caller's thread.
  std::function<void()> look{};
};

// Collective among the processes. `take` gets each peer's descriptors, in rank order, and is done with one peer before
// the next is asked: so few are open at once. It must not throw, or that peer's successors wait in vain. Throws
// Error(kUnsupported) that names the rank that cannot be reached, and what `look` throws; then nobody is served any
// more.
void exchange_fds(const FdServer& server, const FdExchange& request, std::span<const int> own,
                  const std::function<void(std::size_t peer, std::vector<UniqueFd>)>& take);

}  // namespace tutti::cuda
