// The network's endpoint of a process, for tests that make and end many groups.
#pragma once

#include <algorithm>
#include <memory>

#include "transport/tcp/tcp_transport.h"
#include "tutti/config.h"

namespace tutti::test {

// Keeps this process's listener and the thread of its connections: when they end, they wait a while for peers to take
// what was sent to them, which here nobody does any more.
inline std::unique_ptr<tcp::TcpTransport> keep_endpoint() {
  const Config config;
  tcp::TcpOptions options;
  options.size = 2;
  options.interface = config.interface;
  options.master_address = config.master_address;
  options.heartbeat = config.heartbeat;
  options.connect_timeout = std::max(options.connect_timeout, options.silence());
  return tcp::TcpTransport::create(options);
}

}  // namespace tutti::test
