// What the network thread of a process does and leaves, seen from outside: its system calls are counted where the
// library makes them, for this program's poll() and connect() come before the C library's. Peers are sockets that the
// test holds, and so do what a peer of Tutti's never would.
#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <future>
#include <memory>
#include <optional>
#include <vector>

#include "base/secret.h"
#include "net/tcp_socket.h"
#include "support/silent_host.h"
#include "transport/tcp/endpoint.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp_peer.h"
#include "transport/tcp_ranks.h"

namespace {

// Of all threads but the first, on which the tests run.
std::atomic<int> polls_with_events{0}, polls_in_vain{0};
// To the port that a test watches.
std::atomic<int> connects{0};
std::atomic<int> failing{0};  // so many of the next ones fail, each with another of these errors
constexpr std::array kPassing{EHOSTUNREACH, ETIMEDOUT, ENETDOWN, EADDRNOTAVAIL};
// The hosts of all peers answer nothing, it seems.
std::atomic<bool> dumb{false};
std::atomic<int> watched_port{0};

template <class Call>
Call next_of(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// NOLINTBEGIN: the C library's interface
extern "C" __attribute__((visibility("default"))) int poll(pollfd* fds, nfds_t count, int timeout) {
  static const auto next = next_of<int (*)(pollfd*, nfds_t, int)>("poll");
  const int ready = next(fds, count, timeout);
  if (::syscall(SYS_gettid) != ::getpid()) ++(ready > 0 ? polls_with_events : polls_in_vain);
  return ready;
}
extern "C" __attribute__((visibility("default"))) int connect(int fd, const sockaddr* to, socklen_t length) {
  static const auto next = next_of<int (*)(int, const sockaddr*, socklen_t)>("connect");
  if (to->sa_family == AF_INET && ntohs(reinterpret_cast<const sockaddr_in*>(to)->sin_port) == watched_port) {
    ++connects;
    if (failing > 0) {
      errno = kPassing[static_cast<std::size_t>(--failing) % kPassing.size()];
      return -1;
    }
  }
  return next(fd, to, length);
}
extern "C" __attribute__((visibility("default"))) int getsockopt(int fd, int level, int name, void* value,
                                                                 socklen_t* length) {
  static const auto next = next_of<int (*)(int, int, int, void*, socklen_t*)>("getsockopt");
  const int result = next(fd, level, name, value, length);
  if (result == 0 && level == IPPROTO_TCP && name == TCP_INFO && dumb) {
    auto* const info = static_cast<tcp_info*>(value);
    info->tcpi_last_ack_recv = 60'000;
    info->tcpi_unacked = 1;
    info->tcpi_total_retrans = 10;
  }
  return result;
}
// NOLINTEND

namespace tutti::tcp::test {
namespace {

constexpr auto kOften = std::chrono::milliseconds(20);

int descriptors() {
  DIR* const dir = ::opendir("/proc/self/fd");
  int n = 0;
  while (::readdir(dir) != nullptr) ++n;
  ::closedir(dir);
  return n;
}

TcpOptions watchful() {
  TcpOptions options = options_of(0, 2);
  options.heartbeat = kOften;
  options.window = kNoWindow;
  options.logger = Logger();
  return options;
}

// A rest that finds no room, and then the stream dies in the hands of its reader.
TEST(TcpEndpoint, TheThreadSleepsBesideADeadStream) {
  RankZero rank(watchful());
  const Stream& stream = *static_cast<TcpLink*>(rank.link)->stream();
  // The kernel may have room for the rest when the thread tries it: then more is written.
  ASSERT_TRUE(wait_until([&] {
    rank.fill();
    const int then = polls_in_vain;
    return wait_until([&] { return polls_in_vain > then; }) && stream.has_rest();
  }));
  const std::vector<std::byte> nonsense(8, std::byte{0xff});
  ASSERT_EQ(::send(rank.peer.get(), nonsense.data(), nonsense.size(), MSG_NOSIGNAL), 8);
  ASSERT_EQ(wait_for_end(*rank.transport, 1), Status::kPeerLost);
  // Once it may still be woken by what led here.
  const int then = polls_in_vain;
  ASSERT_TRUE(wait_until([&] { return polls_in_vain > then; })) << "it is woken all the time";
  const int before = polls_with_events;
  ASSERT_TRUE(wait_until([&] { return polls_in_vain >= then + 10; })) << "it is woken all the time";
  EXPECT_EQ(polls_with_events, before);
}

// One whose host takes connections, and that never answers: a stopped process.
TEST(TcpEndpoint, APeerThatNeverAnswersDelaysNoOther) {
  const UniqueFd stopped = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  const std::string there = local_address(stopped.get()).text() + "/1";
  watched_port = local_address(stopped.get()).port();
  connects = 0;
  Ranks ranks(3);
  std::vector<std::unique_ptr<TcpTransport>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(TcpTransport::create(options_of(0, 2)));
    waiting.back()->set_peer_addresses({waiting.back()->address(), there});
    EXPECT_NE(waiting.back()->link(1), nullptr);
  }
  ASSERT_TRUE(wait_until([] { return connects == 1; }));  // that dial is under way, and the other groups wait for it
  for (const int peer : {1, 2}) exchange_a_few(ranks, peer);
  for (const auto& group : waiting) {
    EXPECT_EQ(group->link(1)->status(), Status::kOk);
    EXPECT_EQ(group->link(1)->poll_fd(), -1);
  }
}

// Groups of one peer wait for one dial, and what becomes of it becomes of all; other peers are dialed meanwhile.
TEST(TcpEndpoint, ASilentHostIsTriedOnceForAllGroupsAndDelaysNoOther) {
  const tutti::test::SilentHost silent;
  watched_port = silent.address.port();
  connects = 0;
  const auto adjust = [](TcpOptions& o) {
    o.connect_timeout = std::chrono::milliseconds(1'500);
    o.logger = Logger();
  };
  TcpOptions options = options_of(0, 2);
  adjust(options);
  Ranks ranks(2, adjust);
  std::vector<std::unique_ptr<TcpTransport>> waiting;
  for (int i = 0; i < 3; ++i) {
    waiting.push_back(TcpTransport::create(options));
    waiting.back()->set_peer_addresses({waiting.back()->address(), silent.address.text() + "/1"});
    waiting.back()->link(1);
  }
  ASSERT_TRUE(wait_until([] { return connects == 1; }));
  const auto data = pattern(1000, 1);
  std::vector<std::byte> got(data.size());
  ASSERT_TRUE(write_all(ranks[0], 1, data));
  ASSERT_TRUE(read_all(ranks[1], 0, got));
  EXPECT_EQ(waiting[0]->link(1)->status(), Status::kOk) << "the other group has waited";
  for (const auto& group : waiting) {
    EXPECT_EQ(wait_for_end(*group, 1), Status::kPeerLost);
    EXPECT_NE(group->why_lost(1).find("no way from here to " + silent.address.text()), std::string::npos);
  }
  EXPECT_EQ(connects, 1);
}

// As behind a link that has just come up, or while others use up all ports.
TEST(TcpEndpoint, AHostThatCannotBeReachedForAMomentIsReached) {
  Ranks ranks(2);
  watched_port = endpoint_of(ranks[1]).port();
  connects = 0;
  failing = kPassing.size();
  ranks[0].link(1);
  ASSERT_TRUE(wait_until([&] { return connects > 4 || ranks[0].link(1)->status() != Status::kOk; }));
  EXPECT_EQ(ranks[0].link(1)->status(), Status::kOk) << ranks[0].why_lost(1);
  exchange_a_few(ranks);
}

// For all that wait for it at once.
TEST(TcpEndpoint, AHostThatCannotBeReachedForLongerIsLost) {
  const auto adjust = [](TcpOptions& o) {
    o.connect_timeout = std::chrono::milliseconds(800);
    o.logger = Logger();
  };
  Ranks ranks(2, adjust);
  TcpOptions options = options_of(0, 2);
  adjust(options);
  const auto other = TcpTransport::create(options);
  other->set_peer_addresses({"", ranks[1].address()});
  watched_port = endpoint_of(ranks[1]).port();
  connects = 0;
  failing = 1'000'000;
  other->link(1);
  EXPECT_EQ(wait_for_end(ranks[0], 1), Status::kPeerLost);
  EXPECT_EQ(wait_for_end(*other, 1), Status::kPeerLost);
  failing = 0;
  EXPECT_GT(connects, 2);
  EXPECT_NE(ranks[0].why_lost(1).find("cannot be reached: no"), std::string::npos) << ranks[0].why_lost(1);
}

// A hello that nobody acknowledges: no time is set for the peer's words, but its host must answer.
TEST(TcpEndpoint, AHostThatFallsSilentBehindTheConnectionIsLost) {
  const UniqueFd stopped = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  const auto rank = TcpTransport::create(watchful());
  rank->set_peer_addresses({"", local_address(stopped.get()).text() + "/1"});
  rank->link(1);
  dumb = true;
  EXPECT_EQ(wait_for_end(*rank, 1), Status::kPeerLost);
  dumb = false;
  EXPECT_NE(rank->why_lost(1).find("its host does not answer any more"), std::string::npos) << rank->why_lost(1);
}

// Packets find no way in this rank's direction, and the peer's dial comes through: it is taken at once, for nobody can
// have accepted a dial that has not proved itself.
TEST(TcpEndpoint, ADialThatHearsNothingBarsNobody) {
  const UniqueFd silent = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  const TcpOptions options = options_of(0, 2);
  const auto zero = TcpTransport::create(options);
  zero->set_peer_addresses({"", local_address(silent.get()).text() + "/1"});
  zero->link(1);
  UniqueFd taken;
  std::byte hello{};
  ASSERT_TRUE(wait_until([&] {
    if (!taken) taken = accept_from(silent.get(), options.silence());
    return taken && ::recv(taken.get(), &hello, 1, MSG_DONTWAIT) == 1;
  }));
  EXPECT_EQ(dial(*zero, options, {1, {}}).verdict(), Verdict::kAccept);
}

// The socket of a stream that has ended waits for its peer to take what was sent, not for ever.
TEST(TcpEndpoint, WhatNobodyTakesIsThrownAwayInTheEnd) {
  TcpOptions options = watchful();
  options.longest_linger = std::chrono::milliseconds(300);
  const auto other = TcpTransport::create(options);  // the endpoint stays
  const int before = descriptors();
  RankZero rank(options);
  const int with_the_peer = descriptors();
  rank.fill();
  rank.transport.reset();
  EXPECT_EQ(descriptors(), with_the_peer) << "closed at once";
  EXPECT_TRUE(wait_until([&] { return descriptors() == with_the_peer - 1; }));
  rank.peer.reset();
  EXPECT_EQ(descriptors(), before);
}

// Nor does a process wait long in its end.
TEST(TcpEndpoint, ItsEndIsBounded) {
  TcpOptions options = watchful();
  options.longest_end = std::chrono::milliseconds(100);
  RankZero rank(options);
  rank.fill();
  const auto end = std::async(std::launch::async, [&] { rank.transport.reset(); });
  const bool ended = end.wait_for(kBound) == std::future_status::ready;
  EXPECT_TRUE(ended);
  rank.peer.reset();  // else the end would wait for it
}

// Nobody knows how long a rank takes that has proved itself and agreed: what a connection may take is for strangers.
TEST(TcpEndpoint, WhoHasAgreedToShareHasAllTheTimeItTakes) {
  TcpOptions options = options_of(0, 2);
  options.handshake_timeout = std::chrono::milliseconds(200);
  options.most_strangers = 1;
  RankZero rank(options);
  options.communicator = "group 2";
  const auto second = TcpTransport::create(options);
  Handshake sharing = dial(*second, options, {2, rank.handshake->stream_name(false)});
  ASSERT_EQ(sharing.verdict(), Verdict::kShare);
  // A stranger that comes later is dropped for its age; one more may not take the place of who has agreed.
  const auto stranger = [&] {
    UniqueFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    const SocketAddress there = endpoint_of(*rank.transport);
    EXPECT_EQ(::connect(fd.get(), there.raw(), there.length()), 0);
    return fd;
  };
  for (int i = 0; i < 2; ++i) {
    const UniqueFd one = stranger();
    std::byte byte{};
    EXPECT_EQ(::recv(one.get(), &byte, 1, 0), 0);
  }
  const auto open = [&] {
    std::byte byte{};
    return ::recv(sharing.fd(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
  };
  EXPECT_TRUE(open());
  sharing.seal();
  // The group goes over the stream of the first.
  Link* const link = second->link(1);
  EXPECT_TRUE(wait_until([&] { return link->poll_fd() >= 0; }));
  EXPECT_EQ(link->poll_fd(), rank.link->poll_fd());
  EXPECT_TRUE(wait_until([&] { return !open(); }));
  EXPECT_EQ(link->status(), Status::kOk);
  EXPECT_EQ(wait_for_end(*second, 1, std::chrono::milliseconds(50)), Status::kOk);
}

// Nobody may be there any more who takes what goes over the other's stream.
TEST(TcpEndpoint, WhoLeavesWithoutASealIsLost) {
  TcpOptions options = options_of(0, 2);
  options.logger = Logger();
  RankZero rank(options);
  options.communicator = "group 2";
  const auto second = TcpTransport::create(options);
  std::optional<Handshake> sharing(dial(*second, options, {2, rank.handshake->stream_name(false)}));
  ASSERT_EQ(sharing->verdict(), Verdict::kShare);
  EXPECT_TRUE(wait_until([&] { return second->link(1)->poll_fd() >= 0; }));
  sharing.reset();
  EXPECT_EQ(wait_for_end(*second, 1), Status::kPeerLost);
  EXPECT_NE(second->why_lost(1).find("has had a connection"), std::string::npos) << second->why_lost(1);
  EXPECT_EQ(rank.link->status(), Status::kOk);
}

// It has found no memory for what it was told to share.
TEST(TcpEndpoint, WhoWithdrawsSaysWhy) {
  TcpOptions options = options_of(0, 2);
  options.logger = Logger();
  RankZero rank(options);
  options.communicator = "group 2";
  const auto second = TcpTransport::create(options);
  Handshake sharing = dial(*second, options, {2, rank.handshake->stream_name(false)});
  ASSERT_EQ(sharing.verdict(), Verdict::kShare);
  sharing.withdraw();
  EXPECT_EQ(wait_for_end(*second, 1), Status::kPeerLost);
  EXPECT_NE(second->why_lost(1).find("no memory left"), std::string::npos) << second->why_lost(1);
  EXPECT_EQ(rank.link->status(), Status::kOk);
}

}  // namespace
}  // namespace tutti::tcp::test
