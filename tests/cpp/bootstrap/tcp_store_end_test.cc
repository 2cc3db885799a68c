// A store's server that ends by itself: once those who were to come have come and gone, or at its time.
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "bootstrap/limits.h"
#include "bootstrap/ranks.h"
#include "bootstrap/tcp_store.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::hours kNever{1};

std::string came(int rank) { return "came " + std::to_string(rank); }

std::unique_ptr<TcpStore> client_of(const TcpStoreServer& server) {
  TcpStoreOptions options;
  options.port = server.port();
  options.timeout = kLong;
  options.up = true;
  return std::make_unique<TcpStore>(options);
}

// Two round trips: what the server has been told before the first, it has heard before it answers the second.
void expect_served(TcpStore& client) {
  for (int i = 0; i < 2; ++i) EXPECT_NO_THROW(client.add("served", 1));
}

TEST(TcpStoreEnd, OnceAllHaveComeAndGone) {
  const int before = test::open_descriptors();
  TcpStoreServer server("127.0.0.1", 0, "");
  auto first = client_of(server);
  first->set(came(0), "");
  server.end_when_left(2, came, kNever);
  first.reset();
  auto second = client_of(server);  // though nobody was there for a while
  expect_served(*second);
  auto third = client_of(server);
  third->set(came(1), "");
  expect_served(*third);
  third.reset();
  expect_served(*second);
  EXPECT_FALSE(server.ended());
  second.reset();
  EXPECT_TRUE(test::soon([&] { return server.ended(); }));
  EXPECT_EQ(test::open_descriptors(), before);
  try {
    client_of(server);
    ADD_FAILURE() << "served";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kPeerLost) << error.what();
  }
}

TEST(TcpStoreEnd, WhoHasDiedIsNotWaitedFor) {
  TcpStoreServer server("127.0.0.1", 0, "");
  auto client = client_of(server);
  client->leave_will({came(0)}, "it has died");
  server.end_when_left(1, came, kNever);
  expect_served(*client);
  client.reset();
  EXPECT_TRUE(test::soon([&] { return server.ended(); }));
}

TEST(TcpStoreEnd, OnceNobodyIsThereIfNobodyIsToCome) {
  TcpStoreServer server("127.0.0.1", 0, "");
  auto client = client_of(server);
  server.end_when_left(0, came, kNever);
  expect_served(*client);
  client.reset();
  EXPECT_TRUE(test::soon([&] { return server.ended(); }));
}

TEST(TcpStoreEnd, AtItsTimeWhoeverIsThere) {
  TcpStoreServer server("127.0.0.1", 0, "");
  const auto client = client_of(server);
  server.end_when_left(1, came, std::chrono::milliseconds(1));
  EXPECT_TRUE(test::soon([&] { return server.ended(); }));
  EXPECT_THROW(client->get("key", kLong), Error);
}

TEST(TcpStoreEnd, AnotherWordDoesNotHastenIt) {
  TcpStoreServer server("127.0.0.1", 0, "");
  const auto client = client_of(server);
  for (const std::chrono::milliseconds within : {std::chrono::milliseconds::max(), std::chrono::milliseconds(0)}) {
    server.end_when_left(1, came, within);
    expect_served(*client);
  }
}

}  // namespace
}  // namespace tutti
