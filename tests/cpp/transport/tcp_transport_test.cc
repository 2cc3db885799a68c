#include "transport/tcp/tcp_transport.h"

#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "transport/tcp_peer.h"
#include "transport/tcp_ranks.h"
#include "tutti/error.h"

namespace tutti::tcp::test {
namespace {

int entries_of(const char* folder) {
  DIR* dir = ::opendir(folder);
  int n = 0;
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

TEST(TcpTransport, BytesArriveInOrderBothWays) {
  Ranks ranks(2);
  const auto there = pattern(5'000'003, 1);
  const auto back = pattern(3'000'001, 2);
  std::vector<std::byte> got_there(there.size());
  std::vector<std::byte> got_back(back.size());
  std::thread other([&] {
    EXPECT_TRUE(read_all(ranks[1], 0, got_there));
    EXPECT_TRUE(write_all(ranks[1], 0, back));
  });
  EXPECT_TRUE(write_all(ranks[0], 1, there));
  EXPECT_TRUE(read_all(ranks[0], 1, got_back));
  other.join();
  EXPECT_EQ(got_there, there);
  EXPECT_EQ(got_back, back);
}

TEST(TcpTransport, Ipv6) {
  Ranks ranks(2);
  std::unique_ptr<TcpTransport> six[2];
  std::vector<std::string> addresses;
  for (int r = 0; r < 2; ++r) {
    TcpOptions options = options_of(r, 2);
    options.interface.clear();
    options.master_address = "::1";
    six[r] = TcpTransport::create(options);
    addresses.push_back(six[r]->address());
    if (addresses.back().front() != '[') GTEST_SKIP() << "no IPv6 loopback here";
  }
  for (const auto& t : six) t->set_peer_addresses(addresses);
  const auto data = pattern(1000, 3);
  std::vector<std::byte> got(data.size());
  EXPECT_TRUE(write_all(*six[1], 0, data));
  EXPECT_TRUE(read_all(*six[0], 1, got));
  EXPECT_EQ(got, data);
}

TEST(TcpTransport, NoLinkToItselfOrBeyond) {
  Ranks ranks(2);
  EXPECT_EQ(ranks[0].link(0), nullptr);
  EXPECT_EQ(ranks[0].link(2), nullptr);
  EXPECT_EQ(ranks[0].link(-1), nullptr);
  EXPECT_NE(ranks[0].link(1), nullptr);
  EXPECT_EQ(ranks[0].link(1), ranks[0].link(1));
}

TEST(TcpTransport, RankWithoutAddressIsNotServed) {
  auto transport = TcpTransport::create(options_of(0, 3));
  transport->set_peer_addresses({transport->address(), "", "127.0.0.1:9/1"});
  EXPECT_EQ(transport->link(1), nullptr);
  EXPECT_NE(transport->link(2), nullptr);
  EXPECT_THROW(transport->set_peer_addresses({"", "", "nonsense"}), Error);
}

TEST(TcpTransport, UnknownInterfaceIsRefused) {
  TcpOptions options = options_of(0, 2);
  options.interface = "nosuch0";
  EXPECT_THROW(TcpTransport::create(options), Error);
}

// One side only receives: it learns of the link by accept_new(), without having asked for it.
TEST(TcpTransport, AcceptTellsOfAPeersConnection) {
  Ranks ranks(3);
  const auto data = pattern(100, 4);
  std::atomic<int> woken{0};
  ranks[0].on_news([&] { ++woken; });
  ASSERT_TRUE(write_all(ranks[2], 0, data));
  std::vector<int> peers(3);
  ASSERT_TRUE(wait_until([&] { return woken > 0; }));
  ASSERT_EQ(ranks[0].accept_new(peers), 1);
  EXPECT_EQ(peers[0], 2);
  EXPECT_EQ(ranks[0].accept_new(peers), 0);
  std::vector<std::byte> got(data.size());
  EXPECT_TRUE(read_all(ranks[0], 2, got));
  EXPECT_EQ(got, data);
  ranks[0].on_news({});
}

// A link asked for before the addresses are known works once they are.
TEST(TcpTransport, AskingEarlyIsFine) {
  std::unique_ptr<TcpTransport> pair[2] = {TcpTransport::create(options_of(0, 2)),
                                           TcpTransport::create(options_of(1, 2))};
  Link* link = pair[0]->link(1);
  ASSERT_NE(link, nullptr);
  const auto data = pattern(64, 5);
  EXPECT_EQ(link->write_some({}, data), 0U);
  for (const auto& t : pair) t->set_peer_addresses({pair[0]->address(), pair[1]->address()});
  EXPECT_TRUE(write_all(*pair[0], 1, data));
  std::vector<std::byte> got(data.size());
  EXPECT_TRUE(read_all(*pair[1], 0, got));
  EXPECT_EQ(got, data);
}

// Both dial at the same moment. Afterwards they must share one connection: what each writes, the other reads.
TEST(TcpTransport, SimultaneousDialsShareOneConnection) {
  for (int round = 0; round < 200; ++round) {
    Ranks ranks(2);
    const auto a = pattern(777, static_cast<unsigned>(round));
    const auto b = pattern(555, static_cast<unsigned>(round) + 1000);
    std::vector<std::byte> got_a(a.size());
    std::vector<std::byte> got_b(b.size());
    ASSERT_NE(ranks[round % 2].link(1 - round % 2), nullptr);
    ASSERT_NE(ranks[1 - round % 2].link(round % 2), nullptr);
    ASSERT_TRUE(write_all(ranks[0], 1, a)) << round;
    ASSERT_TRUE(write_all(ranks[1], 0, b)) << round;
    ASSERT_TRUE(read_all(ranks[1], 0, got_a)) << round;
    ASSERT_TRUE(read_all(ranks[0], 1, got_b)) << round;
    ASSERT_EQ(got_a, a);
    ASSERT_EQ(got_b, b);
  }
}

TEST(TcpTransport, AllPairsOfEightAtOnce) {
  constexpr int kSize = 8;
  Ranks ranks(kSize);
  for (int r = 0; r < kSize; ++r) {
    for (int p = 0; p < kSize; ++p) ranks[r].link(p);
  }
  for (int r = 0; r < kSize; ++r) {
    for (int p = 0; p < kSize; ++p) {
      if (p == r) continue;
      ASSERT_TRUE(write_all(ranks[r], p, pattern(100, static_cast<unsigned>(r * kSize + p))));
    }
  }
  for (int r = 0; r < kSize; ++r) {
    for (int p = 0; p < kSize; ++p) {
      if (p == r) continue;
      std::vector<std::byte> got(100);
      ASSERT_TRUE(read_all(ranks[r], p, got));
      EXPECT_EQ(got, pattern(100, static_cast<unsigned>(p * kSize + r)));
    }
  }
}

TEST(TcpTransport, WhatWasWrittenBeforeALeaveStillArrives) {
  Ranks ranks(2);
  const auto data = pattern(300'000, 6);
  std::vector<std::byte> got(data.size());
  // Unread bytes at the leaver must not turn its leave into a reset that overtakes what it wrote.
  ASSERT_TRUE(write_all(ranks[1], 0, pattern(1000, 7)));
  std::thread leaver([&] {
    EXPECT_TRUE(write_all(ranks[0], 1, data));
    ranks.transports[0].reset();
  });
  EXPECT_TRUE(read_all(ranks[1], 0, got));
  leaver.join();
  EXPECT_EQ(got, data);
  EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
  EXPECT_EQ(ranks[1].link(0)->poll_fd(), -1);
  EXPECT_EQ(ranks[1].link(0)->write_some({}, data), 0U);
}

// The reader's credits come when the writer is gone; a reset for them would take what the reader's kernel has no room
// for yet.
TEST(TcpTransport, AllThatALinkHasTakenArrivesThoughCreditsComeBehindItsEnd) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    Ranks ranks(2);
    const auto data = pattern(std::size_t{4} << 20, seed);
    Link* const link = ranks[1].link(0);
    ASSERT_TRUE(write_all(ranks[1], 0, ConstBytes(data).first(1)));
    std::vector<std::byte> first(1);
    ASSERT_TRUE(read_all(ranks[0], 1, first));
    std::size_t taken = 1;
    // Whatever the sockets hold; the reader does nothing.
    while (const std::size_t n = link->write_some(ConstBytes(data).subspan(taken), {})) taken += n;
    ranks.transports[1].reset();
    std::vector<std::byte> got(taken - 1);
    EXPECT_TRUE(read_all(ranks[0], 1, got));
    EXPECT_TRUE(std::equal(got.begin(), got.end(), data.begin() + 1));
    EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  }
}

TEST(TcpTransport, NothingIsLeftOfFiveHundred) {
  { Ranks warm_up(2); }
  const int fds = entries_of("/proc/self/fd");
  const int threads = entries_of("/proc/self/task");
  for (int round = 0; round < 250; ++round) {
    Ranks ranks(2);
    if (round % 5 == 0) {
      ASSERT_TRUE(write_all(ranks[0], 1, pattern(10, 1)));
    }
    if (round % 5 == 1) ranks[0].link(1);  // destroyed while it connects
  }
  EXPECT_EQ(entries_of("/proc/self/fd"), fds);
  EXPECT_TRUE(wait_until([&] { return entries_of("/proc/self/task") == threads; }));
}

TEST(TcpTransport, EveryDescriptorClosesOnExec) {
  Ranks ranks(2);
  ASSERT_TRUE(write_all(ranks[0], 1, pattern(10, 1)));
  std::vector<std::byte> got(10);
  ASSERT_TRUE(read_all(ranks[1], 0, got));
  for (int fd = 3; fd < 64; ++fd) {
    const std::string path = "/proc/self/fdinfo/" + std::to_string(fd);
    FILE* file = std::fopen(path.c_str(), "re");
    if (file == nullptr) continue;
    char line[128];
    unsigned long flags = 0;
    while (std::fgets(line, sizeof(line), file) != nullptr) std::sscanf(line, "flags: %lo", &flags);
    std::fclose(file);
    char target[128] = "";
    const std::string link = "/proc/self/fd/" + std::to_string(fd);
    if (::readlink(link.c_str(), target, sizeof(target) - 1) <= 0) continue;
    const std::string what = target;
    if (what.rfind("socket:", 0) == 0 || what.find("eventfd") != std::string::npos) {
      EXPECT_NE(flags & 02000000, 0U) << what;
    }
  }
}

// More peers are waited for than this process may have descriptors. Two processes: one connection is all that they
// need.
TEST(TcpTransport, MoreDialsThanDescriptors) {
  std::vector<std::unique_ptr<TcpTransport>> zeros, ones;
  for (int group = 0; group < 400; ++group) {
    for (int rank = 0; rank < 2; ++rank) {
      TcpOptions options = options_of(rank, 2);
      options.communicator = "group " + std::to_string(group);
      options.heartbeat = std::chrono::milliseconds(rank == 0 ? 500 : 501);  // endpoints of their own, as of processes
      (rank == 0 ? zeros : ones).push_back(TcpTransport::create(options));
    }
    const std::vector<std::string> addresses{zeros.back()->address(), ones.back()->address()};
    zeros.back()->set_peer_addresses(addresses);
    ones.back()->set_peer_addresses(addresses);
  }
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few{300, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  for (auto& zero : zeros) zero->link(1);
  const auto stands = [](TcpTransport& transport) {
    Link* const link = transport.link(1);
    return wait_until([&] { return link->poll_fd() >= 0 || link->status() != Status::kOk; }) && link->poll_fd() >= 0;
  };
  for (auto& zero : zeros) {
    if (!stands(*zero)) {
      ADD_FAILURE() << zero->why_lost(1);
      break;
    }
  }
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(TcpFault, NoRouteNamesTheAddressAndTheSetting) {
  Ranks ranks(1, [](TcpOptions& o) {
    o.size = 2;
    o.connect_timeout = std::chrono::milliseconds(100);
  });
  ranks[0].set_peer_addresses({"", "224.0.0.1:9/1"});  // no connection can be made to a group of hosts
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  const std::string why = ranks[0].why_lost(1);
  for (const char* part : {"cannot be reached: no way from here to 224.0.0.1:9 (", "TUTTI_SOCKET_IFNAME"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
}

TEST(TcpFault, NobodyListens) {
  Ranks ranks(2);
  ranks.transports[1].reset();
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
}

// While the first lives, when it is gone, and where there has been none: a pair that has ended stays so.
TEST(TcpFault, ASecondConnectionIsRefused) {
  const TcpOptions options = options_of(0, 2);
  RankZero zero(options);
  EXPECT_EQ(dial(*zero.transport, options, {2, {}}).verdict(), Verdict::kRefuse);
  EXPECT_EQ(zero.link->status(), Status::kOk);
  zero.peer.reset();
  EXPECT_EQ(wait_for_end(*zero.transport, 1), Status::kPeerLost);
  EXPECT_EQ(dial(*zero.transport, options, {3, {}}).verdict(), Verdict::kRefuse);

  TcpOptions impatient = options;
  impatient.connect_timeout = std::chrono::milliseconds(100);
  const auto alone = TcpTransport::create(impatient);
  alone->set_peer_addresses({"", "224.0.0.1:9/1"});
  EXPECT_EQ(wait_for_end(*alone, 1), Status::kPeerLost);
  EXPECT_EQ(dial(*alone, options, {4, {}}).verdict(), Verdict::kRefuse);
}

// The first that finds out gives up, and listens no more. The other must not take that for a death.
TEST(TcpFault, AWrongSecretIsNamedByTheSecondRankToo) {
  Ranks ranks(2, [&](TcpOptions& o) {
    if (o.rank == 1) o.secret = "something else";
    o.logger = Logger();
  });
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  ranks.transports[0].reset();
  EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
  EXPECT_NE(ranks[1].why_lost(0).find("TUTTI_SECRET"), std::string::npos) << ranks[1].why_lost(0);
}

// It hangs up at our proof long before the own dial fails: nothing is left of its connection by then.
TEST(TcpFault, AWrongSecretIsRememberedUntilTheOwnDialFails) {
  const TcpOptions options = options_of(0, 2);
  const auto zero = TcpTransport::create(options);
  const PeerAddress address = *PeerAddress::parse(zero->address());
  const auto other = std::make_shared<Identity>(Identity{"something else", options.communicator, 1, 2});
  Handshake handshake =
      Handshake::dial(begin_connect(address.endpoint, options.silence()), other, 0, address.group, {1, {}});
  ASSERT_TRUE(wait_until([&] {
    handshake.advance();
    return handshake.over();
  }));
  ASSERT_EQ(handshake.state(), Handshake::State::kForged);
  ::shutdown(handshake.fd(), SHUT_WR);
  std::byte none{};
  ASSERT_TRUE(wait_until([&] { return ::recv(handshake.fd(), &none, 1, MSG_DONTWAIT) == 0; })) << "it is not dropped";

  const auto local = *SocketAddress::parse("127.0.0.1:0");
  const UniqueFd nobody(::socket(local.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));  // has the port, and does not listen
  ASSERT_EQ(::bind(nobody.get(), local.raw(), local.length()), 0);
  zero->set_peer_addresses({"", local_address(nobody.get()).text() + "/1"});
  EXPECT_EQ(wait_for_end(*zero, 1), Status::kPeerLost);
  EXPECT_NE(zero->why_lost(1).find("TUTTI_SECRET"), std::string::npos) << zero->why_lost(1);
}

}  // namespace
}  // namespace tutti::tcp::test
