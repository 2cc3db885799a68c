#include "net/tcp_socket.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <cerrno>

#include "net/named_host.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kBound{20'000};

SocketAddress at(const std::string& host, std::uint16_t port) {
  return *SocketAddress::parse(host + ":" + std::to_string(port));
}

// Both ends of a connection to `listener`, at `address`.
struct Connection {
  Connection(int listener, const SocketAddress& address) : dialer(begin_connect(address, kSystemsSilence)) {
    Deadline deadline = Deadline::after(kBound);
    if (dialer && wait_ready(listener, POLLIN, deadline)) accepted = accept_from(listener, kSystemsSilence);
  }
  UniqueFd dialer, accepted;
};

TEST(TcpSocket, APortThatWasInUseIsTakenAgainAtOnce) {
  const std::uint16_t port = local_address(listen_at(at("127.0.0.1", 0)).get()).port();  // a free one
  {
    const UniqueFd listener = listen_at(at("127.0.0.1", port));
    Connection connection(listener.get(), at("127.0.0.1", port));
    ASSERT_TRUE(connection.accepted);
    connection.accepted.reset();  // the first to end waits in TIME_WAIT, with the listener's port
    connection.dialer.reset();
  }
  const UniqueFd again = listen_at(at("127.0.0.1", port));
  EXPECT_EQ(local_address(again.get()).port(), port);
}

TEST(TcpSocket, APortThatIsInUseIsNot) {
  const UniqueFd listener = listen_at(at("127.0.0.1", 0));
  const std::uint16_t port = local_address(listener.get()).port();
  EXPECT_FALSE(try_listen_at(at("127.0.0.1", port)));
  EXPECT_EQ(errno, EADDRINUSE);
  EXPECT_THROW(listen_at(at("127.0.0.1", port)), Error);
}

TEST(TcpSocket, TheWildcardOfIpv6ServesIpv4) {
  const UniqueFd listener = try_listen_at(at("[::]", 0));
  if (!listener) GTEST_SKIP() << "no IPv6 here";
  EXPECT_TRUE(Connection(listener.get(), at("127.0.0.1", local_address(listener.get()).port())).accepted);
}

TEST(TcpSocket, OneThatCannotBeMadeLeavesItsReason) {
  const SocketAddress own = at("127.0.0.1", 0);
  const UniqueFd listener = listen_at(own);
  rlimit old{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &old), 0);
  const rlimit none{0, old.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const bool listens = static_cast<bool>(try_listen_at(own));
  const int why_not_listening = errno;
  const bool connects = static_cast<bool>(begin_connect(local_address(listener.get()), kSystemsSilence));
  const int why_not_connecting = errno;
  Deadline deadline = Deadline::after(kBound);
  ConnectFailure failure;
  const UnforkedFd named = connect_tcp("127.0.0.1", local_address(listener.get()).port(), deadline, failure);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &old), 0);
  EXPECT_FALSE(listens || connects || named);
  EXPECT_TRUE(out_of_descriptors(why_not_listening));
  EXPECT_TRUE(out_of_descriptors(why_not_connecting));
  EXPECT_TRUE(failure.exhausted);
  EXPECT_FALSE(failure.refused);
}

TEST(TcpSocket, NobodyListensIsTold) {
  const std::uint16_t port = local_address(listen_at(at("127.0.0.1", 0)).get()).port();  // and ends
  Deadline deadline = Deadline::after(kBound);
  ConnectFailure failure;
  EXPECT_FALSE(connect_tcp("127.0.0.1", port, deadline, failure));
  EXPECT_TRUE(failure.refused);
  EXPECT_FALSE(failure.exhausted);
  EXPECT_FALSE(failure.why.empty());
}

// Nobody listens at one of the ports that the kernel gives to those who connect.
TEST(TcpSocket, NobodyIsConnectedToItself) {
  for (int i = 0; i < 40'000; ++i) {
    ConnectFailure failure;
    Deadline deadline = Deadline::after(kBound);
    const UnforkedFd socket = connect_tcp("127.0.0.1", 41'418, deadline, failure);
    ASSERT_FALSE(socket) << "attempt " << i << ", from " << local_address(socket.get()).text();
    ASSERT_TRUE(failure.refused);
  }
}

// What keepalive is set to: by this library where it judges silence, else by the system.
TEST(TcpSocket, SilenceIsJudgedAsAsked) {
  const UniqueFd listener = listen_at(at("127.0.0.1", 0));
  const auto idle_s = [&](std::chrono::milliseconds silence) {
    const UniqueFd socket = begin_connect(local_address(listener.get()), silence);
    int seconds = 0;
    socklen_t length = sizeof seconds;
    ::getsockopt(socket.get(), IPPROTO_TCP, TCP_KEEPIDLE, &seconds, &length);
    return seconds;
  };
  const int systems = idle_s(kSystemsSilence);
  EXPECT_EQ(idle_s(std::chrono::seconds(8)), 2);
  EXPECT_EQ(idle_s(kSystemsSilence), systems);
  EXPECT_GT(systems, 2);
}

}  // namespace
}  // namespace tutti
