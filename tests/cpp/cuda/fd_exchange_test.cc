// The exchange of descriptors of GPU memory, by ranks that are threads and another user's process. Needs no GPU.
#include "channel/cuda/fd_exchange.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <thread>

#include "base/mapping.h"
#include "base/secret.h"
#include "bootstrap/exchange.h"
#include "net/local_socket.h"
#include "support/no_threads.h"
#include "support/other_user.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

using test::OtherUser;
using test::Talk;

constexpr std::size_t kBytes = 12'288;

FdExchange request_of(int rank) {
  FdExchange request;
  request.id = "group";
  request.secret = "a secret";
  request.rank = rank;
  request.timeout = std::chrono::seconds(20);
  return request;
}

// Rank 0 gives a file to rank 1, after `before_rank_1`.
void give_one(const std::function<void(const FdServer&)>& before_rank_1) {
  const FdServer server = make_fd_server();
  const UniqueFd file = create_memfd("test", kBytes);
  FdExchange giver = request_of(0);
  giver.clients = 1;
  std::thread rank_0([&] {
    const int own = file.get();
    exchange_fds(server, giver, {&own, 1}, [](std::size_t, std::vector<UniqueFd>) {});
  });
  before_rank_1(server);
  FdExchange taker = request_of(1);
  taker.peers = {{server.name, 1}};
  std::size_t bytes = 0;
  EXPECT_NO_THROW(exchange_fds({}, taker, {}, [&](std::size_t, std::vector<UniqueFd> fds) {
    struct stat status {};
    if (fds.size() == 1 && ::fstat(fds[0].get(), &status) == 0) bytes = static_cast<std::size_t>(status.st_size);
  }));
  rank_0.join();
  EXPECT_EQ(bytes, kBytes);
}

TEST(FdExchange, GivesDescriptors) {
  give_one([](const FdServer&) {});
}

TEST(FdExchange, AThreadThatCannotStartIsAnError) {
  const FdServer server = make_fd_server();
  FdExchange giver = request_of(0);
  giver.clients = 1;
  const test::NoThreads none;
  try {
    exchange_fds(server, giver, {}, [](std::size_t, std::vector<UniqueFd>) {});
    FAIL() << "it started";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
  }
}

// What is heard of a rank elsewhere ends every wait for it: for its descriptors, and for it to fetch this rank's.
TEST(FdExchange, WhoHearsOfAFailureWaitsNoLonger) {
  const FdServer silent = make_fd_server(), own = make_fd_server();
  const UniqueFd file = create_memfd("test", kBytes);
  const int number = file.get();
  const auto error_of = [&](FdExchange request, std::span<const int> gives) {
    request.look = [] { throw KnownToAll(ErrorKind::kPeerLost, "rank 0 has failed"); };
    try {
      exchange_fds(own, request, gives, [](std::size_t, std::vector<UniqueFd>) {});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  FdExchange taker = request_of(1);
  taker.peers = {{silent.name, 1}};
  EXPECT_EQ(error_of(taker, {}), "rank 0 has failed");
  FdExchange giver = request_of(1);
  giver.clients = 1;
  EXPECT_EQ(error_of(giver, {&number, 1}), "rank 0 has failed");
  taker.clients = 1;
  EXPECT_EQ(error_of(taker, {&number, 1}), "rank 0 has failed");
}

TEST(FdExchange, AnotherUserWithTheSecretGetsNone) {
  if (!test::may_be_another_user()) GTEST_SKIP() << "only root can play another user";
  const OtherUser stranger([](const Talk& talk) {
    const UniqueFd socket = new_local_socket();
    connect_local(socket.get(), talk.hear());
    send_message(socket.get(), talk.hear(), {});
    pollfd fd{socket.get(), POLLIN, 0};
    LocalMessage answer;
    const bool ended = ::poll(&fd, 1, 20'000) == 1 && receive_message(socket.get(), answer) == SocketStatus::kEnd;
    talk.say(ended ? "turned away" : "answered");
  });
  give_one([&](const FdServer& server) {
    const std::array<std::string_view, 3> parts{"tutti-cuda-fd", "group", "1>0"};
    const Digest digest = hmac("a secret", parts);
    stranger.talk().say(server.name);
    stranger.talk().say("\1" + std::string(reinterpret_cast<const char*>(digest.data()), digest.size()));
    EXPECT_EQ(stranger.talk().hear(), "turned away");
  });
}

TEST(FdExchange, AnotherUsersSocketIsNamed) {
  if (!test::may_be_another_user()) GTEST_SKIP() << "only root can play another user";
  const std::string name = "tutti-test-" + random_secret();
  const OtherUser stranger([&](const Talk& talk) {
    const UniqueFd listener = listen_local(name);
    talk.say(listener ? "listens" : "cannot listen");
    talk.hear();
  });
  ASSERT_EQ(stranger.talk().hear(), "listens");
  FdExchange taker = request_of(1);
  taker.peers = {{name, 1}};
  try {
    exchange_fds({}, taker, {}, [](std::size_t, std::vector<UniqueFd>) {});
    FAIL() << "it took another user's descriptors";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("another user's process"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tutti::cuda
