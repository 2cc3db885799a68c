#include "transport/tcp/tcp_transport.h"

#include <algorithm>

#include "net/address.h"
#include "transport/tcp/endpoint.h"
#include "transport/tcp/member.h"
#include "tutti/error.h"

namespace tutti::tcp {

std::unique_ptr<TcpTransport> TcpTransport::create(const TcpOptions& options) {
  return std::unique_ptr<TcpTransport>(new TcpTransport(options));
}

std::unique_ptr<NetworkTransport> create_network(const NetworkOptions& options) {
  TcpOptions complete;
  static_cast<NetworkOptions&>(complete) = options;
  complete.connect_timeout = std::max(complete.connect_timeout, complete.silence());
  return TcpTransport::create(complete);
}

TcpTransport::TcpTransport(const TcpOptions& options) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    throw_error(ErrorKind::kInvalidArgument,
                "rank " + std::to_string(options.rank) + " of " + std::to_string(options.size));
  }
  endpoint_ = Endpoint::of(options);
  member_ = endpoint_->join(options);
  try {
    address_ = endpoint_->address().text() + "/" + std::to_string(member_->number);
  } catch (...) {
    endpoint_->leave(*member_);  // whom it would look for
    throw;
  }
}

TcpTransport::~TcpTransport() {
  if (endpoint_->inherited()) {
    // The thread runs in the parent only, locks may be held there, and the connections are the parent's: the objects
    // stay behind, with the rest of what is the parent's.
    for (const auto& peer : member_->peers) peer->link.abandon();
    static_cast<void>(member_.release());
    new std::shared_ptr<Endpoint>(std::move(endpoint_));
    return;
  }
  endpoint_->leave(*member_);
}

void TcpTransport::set_peer_addresses(const std::vector<std::string>& addresses) {
  std::vector<PeerAddress> parsed;
  parsed.reserve(addresses.size());
  for (const std::string& text : addresses) {
    const auto address = text.empty() ? PeerAddress{} : PeerAddress::parse(text);
    if (!address) {
      throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(parsed.size()) + " gave '" + text +
                                                   "', which is no address of the tcp transport");
    }
    parsed.push_back(*address);
  }
  member_->set_addresses(std::move(parsed));
  endpoint_->look();
}

Link* TcpTransport::link(int peer) noexcept {
  bool asked_now = false;
  Link* const link = member_->want(peer, asked_now);
  if (asked_now) endpoint_->look();
  return link;
}

// Takes effect on the endpoint's thread.
void TcpTransport::close(Status why, const LastWords& words) noexcept {
  member_->say_last(words);
  if (why == Status::kExhausted) member_->starved.store(true, std::memory_order_relaxed);
  member_->closing.store(true, std::memory_order_relaxed);
  endpoint_->look();
}

void TcpTransport::finish_close() noexcept { endpoint_->close_now(*member_); }

int TcpTransport::accept_new(std::span<int> peers) noexcept { return member_->take_news(peers); }
std::string TcpTransport::why_lost(int peer) const { return member_->why_lost(peer); }
std::string TcpTransport::want_here(int peer) const { return member_->want_here(peer); }
void TcpTransport::on_news(std::function<void()> wake) { member_->wake.set(std::move(wake)); }

}  // namespace tutti::tcp
