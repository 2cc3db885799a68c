// What a rank says when it fails or leaves reaches whoever asks for it: those that ask later, that are just asking, and
// that it was just asking itself.
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/ranks.h"
#include "transport/tcp/tcp_link.h"
#include "transport/tcp_peer.h"
#include "transport/tcp_ranks.h"

namespace tutti::tcp::test {
namespace {

LastWords words_of(int seed) {
  LastWords words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::byte>(static_cast<int>(i) + seed);
  return words;
}

// The frame that ends the part `inlet` of a stream: see Stream.
std::vector<std::byte> end_of_part(std::uint32_t inlet, const LastWords& words) {
  constexpr std::uint32_t kEnd = 2;
  std::vector<std::byte> frame(8);
  put_u32(frame.data(), inlet);
  put_u32(frame.data() + 4, kEnd << 24 | static_cast<std::uint32_t>(words.size()));
  frame.insert(frame.end(), words.begin(), words.end());
  return frame;
}

// As many bytes as are awaited; fewer if the connection ends or the bound passes.
std::vector<std::byte> receive(int fd, std::size_t bytes) {
  std::vector<std::byte> got(bytes);
  std::size_t n = 0;
  wait_until([&] {
    const ssize_t more = n < bytes ? ::recv(fd, got.data() + n, bytes - n, MSG_DONTWAIT) : 0;
    if (more > 0) n += static_cast<std::size_t>(more);
    return more == 0 || (more < 0 && errno != EAGAIN);
  });
  got.resize(n);
  return got;
}

bool ended(int fd) { return receive(fd, 1).empty(); }

class TcpLastWords : public testing::TestWithParam<bool> {
 protected:
  // The group of `transport` ends; it stays, or it goes too, while others keep the endpoint.
  static void end(std::unique_ptr<TcpTransport>& transport, const LastWords& words, Status why = Status::kAborted) {
    transport->close(why, words);
    if (GetParam()) transport.reset();
  }

  const LastWords words_ = words_of(1);
  const std::unique_ptr<TcpTransport> keeper_ = TcpTransport::create(options_of(0, 2));
};

INSTANTIATE_TEST_SUITE_P(TheGroup, TcpLastWords, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "HasGone" : "IsThere"; });

TEST_P(TcpLastWords, AreFoundByWhoComesLater) {
  for (const Status why : {Status::kAborted, Status::kPeerLeft, Status::kExhausted}) {
    Ranks ranks(3);
    ranks.transports[0]->close(why, words_);
    if (GetParam()) ranks.transports[0].reset();
    EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
    EXPECT_EQ(ranks[1].link(0)->last_words(), words_);
    // The rank ends likewise; another thread of it may be about to read them.
    ranks[1].close(Status::kAborted, words_of(2));
    EXPECT_EQ(wait_for_end(ranks[2], 1), Status::kPeerLost);
    EXPECT_EQ(ranks[1].link(0)->last_words(), words_);
  }
}

TEST_P(TcpLastWords, AreForWhoKnowsTheSecret) {
  for (const bool secret : {true, false}) {
    Ranks ranks(2, [&](TcpOptions& o) {
      if (o.rank == 1) (secret ? o.secret : o.communicator) = "something else";
      o.logger = Logger();
    });
    end(ranks.transports[0], words_);
    EXPECT_EQ(wait_for_end(ranks[1], 0), Status::kPeerLost);
    EXPECT_EQ(ranks[1].link(0)->last_words(), LastWords{});
    EXPECT_NE(ranks[1].why_lost(0).find("TUTTI_SECRET"), std::string::npos);
  }
}

// It has said hello; the group ends; it goes on.
TEST_P(TcpLastWords, AreFoundByWhoIsJustDialing) {
  const TcpOptions options = options_of(0, 2);
  auto transport = TcpTransport::create(options);
  const PeerAddress address = *PeerAddress::parse(transport->address());
  const auto identity = std::make_shared<Identity>(Identity{options.secret, options.communicator, 1, 2});
  Handshake dialer =
      Handshake::dial(begin_connect(address.endpoint, options.silence()), identity, 0, address.group, {1, {}});
  ASSERT_TRUE(wait_until([&] { return dialer.advance() >= Handshake::State::kTalking; }));
  std::byte byte{};
  ASSERT_TRUE(wait_until([&] {
    return dialer.state() >= Handshake::State::kDone || ::recv(dialer.fd(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
  }));
  end(transport, words_);
  ASSERT_TRUE(wait_until([&] { return dialer.advance() >= Handshake::State::kDone; }));
  // One step of the dialer's may be hello, proof and verdict, where the listener is quick: then it has been taken in,
  // and is told in the stream.
  if (dialer.verdict() == Verdict::kAccept) {
    EXPECT_EQ(receive(dialer.fd(), 8 + words_.size()), end_of_part(1, words_));
  } else {
    EXPECT_EQ(dialer.verdict(), Verdict::kGone);
    EXPECT_EQ(dialer.last_words(), words_);
  }
}

// The link stands, and nobody on the other side has looked at it yet.
TEST_P(TcpLastWords, AreFoundByWhoHasBeenTakenIn) {
  TcpOptions options = options_of(0, 2);
  auto transport = TcpTransport::create(options);
  Handshake dialer = dial(*transport, options, {7, {}});
  ASSERT_EQ(dialer.verdict(), Verdict::kAccept);
  end(transport, words_);
  EXPECT_EQ(receive(dialer.fd(), 8 + words_.size()), end_of_part(7, words_));
}

// The peer as a listener: it has taken the dial of a rank that ends before it hears so.
class TcpLastWordsOfADialer : public TcpLastWords {
 protected:
  TcpLastWordsOfADialer() {
    transport_->set_peer_addresses({transport_->address(), local_address(listener_.get()).text() + "/5"});
  }

  Handshake take_dial() {
    EXPECT_NE(transport_->link(1), nullptr);
    UniqueFd fd;
    EXPECT_TRUE(wait_until([&] {
      fd = accept_from(listener_.get(), options_.silence());
      return static_cast<bool>(fd);
    }));
    const auto self = std::make_shared<Identity>(Identity{options_.secret, options_.communicator, 1, 2});
    Handshake listener = Handshake::listen(std::move(fd), [self](const Hello&) { return self; });
    EXPECT_TRUE(wait_until([&] { return listener.advance() == Handshake::State::kProven; }));
    return listener;
  }

  TcpOptions options_ = options_of(0, 2);
  const UniqueFd listener_ = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  std::unique_ptr<TcpTransport> transport_ = TcpTransport::create(options_);
};

INSTANTIATE_TEST_SUITE_P(TheGroup, TcpLastWordsOfADialer, testing::Bool(),
                         [](const auto& kind) { return kind.param ? "HasGone" : "IsThere"; });

TEST_P(TcpLastWordsOfADialer, AreInTheStreamThatThePeerMakes) {
  Handshake listener = take_dial();
  end(transport_, words_);
  listener.answer(Verdict::kAccept, 9);
  EXPECT_EQ(receive(listener.fd(), 8 + words_.size()), end_of_part(9, words_));
  if (GetParam()) {
    EXPECT_TRUE(ended(listener.fd()));
  }
}

TEST_P(TcpLastWordsOfADialer, AreInTheStreamThatThePeerShares) {
  // The two processes have a stream, of another group.
  auto first = take_dial();
  first.answer(Verdict::kAccept, 9);
  ASSERT_TRUE(wait_until([&] { return transport_->link(1)->poll_fd() >= 0; }));
  const auto other = std::move(transport_);
  options_.communicator = "group 2";
  transport_ = TcpTransport::create(options_);
  transport_->set_peer_addresses({transport_->address(), local_address(listener_.get()).text() + "/6"});
  Handshake listener = take_dial();
  EXPECT_EQ(listener.offer().stream, first.stream_name(false));
  end(transport_, words_);
  listener.answer(Verdict::kShare, 10);
  EXPECT_EQ(receive(first.fd(), 8 + words_.size()), end_of_part(10, words_));
  EXPECT_TRUE(wait_until([&] { return listener.advance() >= Handshake::State::kDone; }));
  EXPECT_EQ(listener.state(), Handshake::State::kDone) << "it has not been sealed";
}

// For the thread sanitizer: what the I/O thread has cleared, the group's thread may read once it sees the end.
TEST(TcpLastWordsOfNobody, AreReadWhenALinkFailsForWantOfMemory) {
  Wake wake;
  TcpLink link(wake, 1 << 20);
  std::thread io([&] {
    link.expect(nullptr, 0);
    link.fail(Status::kExhausted);
  });
  while (link.status() == Status::kOk) std::this_thread::yield();
  EXPECT_EQ(link.last_words(), LastWords{});
  io.join();
}

// A process whose last group ends hears its peers out, for a moment and no longer.
TEST(TcpEnd, IsToldByAProcessThatEnds) {
  TcpOptions options = options_of(0, 2);
  const UniqueFd listener = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  for (const bool answers : {true, false}) {
    options.longest_end = answers ? kBound : std::chrono::milliseconds(200);
    auto transport = TcpTransport::create(options);
    transport->set_peer_addresses({transport->address(), local_address(listener.get()).text() + "/5"});
    ASSERT_NE(transport->link(1), nullptr);
    UniqueFd fd;
    ASSERT_TRUE(wait_until([&] {
      fd = accept_from(listener.get(), options.silence());
      return static_cast<bool>(fd);
    }));
    const auto self = std::make_shared<Identity>(Identity{options.secret, options.communicator, 1, 2});
    Handshake theirs = Handshake::listen(std::move(fd), [self](const Hello&) { return self; });
    ASSERT_TRUE(wait_until([&] { return theirs.advance() == Handshake::State::kProven; }));
    transport->close(Status::kAborted, words_of(2));
    const auto begin = std::chrono::steady_clock::now();
    std::thread end([&] { transport.reset(); });
    if (answers) {
      theirs.answer(Verdict::kAccept, 9);
      EXPECT_EQ(receive(theirs.fd(), 8 + sizeof(LastWords)), end_of_part(9, words_of(2)));
      EXPECT_TRUE(ended(theirs.fd()));
    }
    end.join();
    if (!answers) {  // whole milliseconds are counted: it may be one less
      EXPECT_GE(std::chrono::steady_clock::now() - begin, options.longest_end - std::chrono::milliseconds(1))
          << "it has not been waited for";
    }
  }
}

// A group's dial has offered the stream of another; both groups end, the process's last, and the peer does not answer:
// then nobody but that dial holds the stream, which still has something to send.
TEST(TcpEnd, OfAStreamThatOnlyADialHolds) {
  TcpOptions options = options_of(0, 2);
  options.longest_end = std::chrono::milliseconds(50);
  options.window = kNoWindow;
  const UniqueFd listener = listen_at(*SocketAddress::parse("127.0.0.1:0"));
  for (int round = 0; round < 2; ++round) {
    const int before = tutti::test::open_descriptors();
    {
      std::vector<std::unique_ptr<TcpTransport>> groups;
      std::vector<Handshake> theirs;
      const auto take_dial = [&] {
        options.communicator = "group " + std::to_string(groups.size());
        groups.push_back(TcpTransport::create(options));
        groups.back()->set_peer_addresses({groups.back()->address(), local_address(listener.get()).text() + "/5"});
        ASSERT_NE(groups.back()->link(1), nullptr);
        UniqueFd fd;
        ASSERT_TRUE(wait_until([&] {
          fd = accept_from(listener.get(), options.silence());
          return static_cast<bool>(fd);
        }));
        const auto self = std::make_shared<Identity>(Identity{options.secret, options.communicator, 1, 2});
        theirs.push_back(Handshake::listen(std::move(fd), [self](const Hello&) { return self; }));
        ASSERT_TRUE(wait_until([&] { return theirs.back().advance() == Handshake::State::kProven; }));
      };
      options.communicator = "keeper";
      auto keeper = TcpTransport::create(options);
      {  // where sockets have lingered before, there is memory for another
        options.communicator = "earlier";
        RankZero earlier(options);
        earlier.fill();
        earlier.transport.reset();
      }
      take_dial();
      theirs[0].answer(Verdict::kAccept, 9);
      Link* const link = groups[0]->link(1);
      ASSERT_TRUE(wait_until([&] { return link->poll_fd() >= 0; }));
      const std::vector<std::byte> bytes(100'000);
      while (link->write_some(bytes, {}) != 0) {
      }
      take_dial();
      EXPECT_EQ(theirs[1].offer().stream, theirs[0].stream_name(false));
      groups.clear();
      keeper.reset();
    }
    EXPECT_EQ(tutti::test::open_descriptors(), before);
  }
}

// Of so many groups that have ended, the latest are remembered.
TEST(TcpEnd, IsForgottenInTheEnd) {
  Ranks first(2), later(2);
  first.transports[0]->close(Status::kAborted, words_of(1));
  first.transports[0].reset();
  for (int i = 0; i < 255; ++i) TcpTransport::create(options_of(0, 2))->close(Status::kAborted, words_of(i));
  later.transports[0]->close(Status::kAborted, words_of(3));
  later.transports[0].reset();
  EXPECT_EQ(wait_for_end(first[1], 0), Status::kPeerLost);
  EXPECT_EQ(first[1].link(0)->last_words(), LastWords{});
  EXPECT_NE(first[1].why_lost(0).find("has no such group"), std::string::npos) << first[1].why_lost(0);
  EXPECT_EQ(wait_for_end(later[1], 0), Status::kPeerLost);
  EXPECT_EQ(later[1].link(0)->last_words(), words_of(3));
}

}  // namespace
}  // namespace tutti::tcp::test
