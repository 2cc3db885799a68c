// Networks between hosts: how a group makes a transport of each, and what its ranks tell each other of it.
//
// A group names none: it is given a list (communicator/networks.h), carries what each says of where it is reached to
// all ranks, and takes for a peer the first that both have.
//
// Ownership and thread rule: transport/link.h's.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "transport/link.h"

namespace tutti {

struct NetworkOptions {
  int rank = 0;
  int size = 1;
  std::string communicator;                  // its id, which both ends of a link prove to mean
  std::string secret;                        // equal on all ranks
  std::string interface;                     // TUTTI_SOCKET_IFNAME; empty: chosen by the route to `master_address`
  std::string master_address;                // MASTER_ADDR, may be empty
  std::chrono::milliseconds heartbeat{500};  // how often connections are looked at
  Logger logger;
};

class NetworkTransport : public Transport {
 public:
  // Where this rank is reached, as an opaque blob that the group gives to all ranks. Not empty.
  virtual const std::string& address() const noexcept = 0;

  // What all ranks gave, in rank order; an empty blob is a rank that this transport does not serve. Nothing is sent
  // before it. Throws Error(kInvalidArgument) for what is no address.
  virtual void set_peer_addresses(const std::vector<std::string>& addresses) = 0;
};

struct Network {
  std::string_view name;
  // Null where this machine has none of it. Throws Error: kInvalidArgument for a wrong setting, kExhausted.
  std::unique_ptr<NetworkTransport> (*create)(const NetworkOptions& options);
};

}  // namespace tutti
