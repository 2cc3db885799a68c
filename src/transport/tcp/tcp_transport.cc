#include "transport/tcp/tcp_transport.h"

#include "transport/tcp/address.h"
#include "transport/tcp/connector.h"
#include "transport/tcp/socket.h"
#include "tutti/error.h"

namespace tutti::tcp {

std::unique_ptr<TcpTransport> TcpTransport::create(const TcpOptions& options) {
  return std::unique_ptr<TcpTransport>(new TcpTransport(options));
}

TcpTransport::TcpTransport(const TcpOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw_error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size));
  }
  const auto route = options.interface.empty() ? route_to(options.master_address) : std::nullopt;
  UniqueFd listener = listen_at(choose_address(interface_addresses(), options.interface, route));
  address_ = local_address(listener.get()).text();
  connector_ = std::make_unique<Connector>(options, std::move(listener));
}

TcpTransport::~TcpTransport() = default;

void TcpTransport::set_peer_addresses(const std::vector<std::string>& addresses) {
  std::vector<SocketAddress> parsed;
  parsed.reserve(addresses.size());
  for (const std::string& text : addresses) {
    const auto address = text.empty() ? SocketAddress{} : SocketAddress::parse(text);
    if (!address) {
      throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(parsed.size()) + " gave '" + text +
                                                   "', which is no address of the tcp transport");
    }
    parsed.push_back(*address);
  }
  connector_->set_addresses(std::move(parsed));
}

Link* TcpTransport::link(int peer) noexcept { return connector_->want(peer); }
int TcpTransport::accept_new(std::span<int> peers) noexcept { return connector_->take_news(peers); }
void TcpTransport::close() noexcept { connector_->close(); }
std::string TcpTransport::why_lost(int peer) const { return connector_->why_lost(peer); }
int TcpTransport::accept_fd() const noexcept { return connector_->news_fd(); }

}  // namespace tutti::tcp
