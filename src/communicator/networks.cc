#include "communicator/networks.h"

#include "transport/tcp/tcp_transport.h"

namespace tutti {

std::span<const Network> built_in_networks() noexcept {
  static constexpr Network kNetworks[] = {{"tcp", &tcp::create_network}};
  return kNetworks;
}

}  // namespace tutti
