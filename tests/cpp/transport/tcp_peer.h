// A peer of a TcpTransport that is the test itself: it does by hand what a rank does.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <vector>

#include "base/unique_fd.h"
#include "net/address.h"
#include "net/tcp_socket.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/member.h"
#include "transport/tcp_ranks.h"

namespace tutti::tcp::test {

// What stops a writer is then the kernel's window only.
inline constexpr std::uint64_t kNoWindow = std::uint64_t{1} << 40;

inline SocketAddress endpoint_of(const TcpTransport& transport) {
  return PeerAddress::parse(transport.address())->endpoint;
}

// Rank 1 of two, by hand: it has proved itself to rank 0, and offered what the test says.
inline Handshake dial(const TcpTransport& transport, const TcpOptions& theirs, const Offer& offer) {
  const auto identity = std::make_shared<Identity>(Identity{theirs.secret, theirs.communicator, 1, theirs.size});
  const PeerAddress address = *PeerAddress::parse(transport.address());
  Handshake handshake =
      Handshake::dial(begin_connect(address.endpoint, theirs.silence()), identity, 0, address.group, offer);
  EXPECT_TRUE(wait_until([&] {
    handshake.advance();
    return handshake.over();
  }));
  EXPECT_EQ(handshake.state(), Handshake::State::kDone);
  return handshake;
}

// A rank whose peer is the test.
struct RankZero {
  explicit RankZero(const TcpOptions& options) {
    transport = TcpTransport::create(options);
    handshake.emplace(dial(*transport, options, {1, {}}));
    EXPECT_EQ(handshake->verdict(), Verdict::kAccept);
    peer = handshake->take_socket();
    link = transport->link(1);
    EXPECT_TRUE(wait_until([&] { return link->poll_fd() >= 0; }));
  }
  // Until the sockets are full, and a rest is left to the thread.
  void fill() {
    const std::vector<std::byte> bytes(100'000);
    while (link->write_some(bytes, {}) != 0) {
    }
  }

  std::unique_ptr<TcpTransport> transport;
  std::optional<Handshake> handshake;
  UniqueFd peer;
  Link* link = nullptr;
};

}  // namespace tutti::tcp::test
