#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "transport/tcp/handshake.h"

namespace tutti::tcp {
namespace {

using State = Handshake::State;

std::pair<UniqueFd, UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

const Identity kDialer{"secret", "group", 2, 4};
const Identity kListener{"secret", "group", 1, 4};
constexpr std::uint64_t kGroup = 7;

Handshake dial(UniqueFd fd, const Offer& offer = {3, {}}) {
  return Handshake::dial(std::move(fd), std::make_shared<Identity>(kDialer), 1, kGroup, offer);
}

// A listener that has one group.
Handshake listen(UniqueFd fd, const Identity& identity = kListener) {
  return Handshake::listen(std::move(fd), [identity](const Hello& hello) {
    return hello.group == kGroup ? std::make_shared<Identity>(identity) : nullptr;
  });
}

void talk(Handshake& a, Handshake& b) {
  for (int i = 0; i < 8; ++i) {
    a.advance();
    b.advance();
  }
}

TEST(TcpHandshake, BothProveThemselvesAndTheVerdictArrives) {
  for (const Verdict verdict :
       {Verdict::kAccept, Verdict::kYield, Verdict::kRefuse, Verdict::kFull, Verdict::kStarved}) {
    auto [a, b] = socket_pair();
    Handshake dialer = dial(std::move(a));
    Handshake listener = listen(std::move(b));
    talk(dialer, listener);
    ASSERT_EQ(listener.state(), State::kProven);
    EXPECT_EQ(listener.peer(), 2);
    EXPECT_EQ(dialer.state(), State::kTalking);
    EXPECT_EQ(listener.answer(verdict, 5), State::kDone);
    EXPECT_EQ(dialer.advance(), State::kDone);
    EXPECT_EQ(dialer.verdict(), verdict);
    EXPECT_EQ(dialer.listeners_inlet(), 5U);
    EXPECT_EQ(listener.offer().inlet, 3U);
  }
}

TEST(TcpHandshake, LastWordsArriveBehindTheVerdict) {
  LastWords words;
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = static_cast<std::byte>(i + 1);
  auto [a, b] = socket_pair();
  Handshake dialer = dial(std::move(a));
  Handshake listener = listen(std::move(b));
  talk(dialer, listener);
  ASSERT_EQ(listener.state(), State::kProven);
  listener.take_leave(words);
  EXPECT_EQ(listener.state(), State::kDone);
  EXPECT_EQ(dialer.advance(), State::kDone);
  EXPECT_EQ(dialer.verdict(), Verdict::kGone);
  EXPECT_EQ(dialer.last_words(), words);
}

// Both ends call the two ends of a stream the same, and no two streams have one name.
TEST(TcpHandshake, AStreamHasANameAnEnd) {
  std::vector<StreamName> names;
  for (int i = 0; i < 2; ++i) {
    auto [a, b] = socket_pair();
    Handshake dialer = dial(std::move(a));
    Handshake listener = listen(std::move(b));
    talk(dialer, listener);
    for (const bool end : {true, false}) {
      EXPECT_EQ(dialer.stream_name(end), listener.stream_name(end));
      EXPECT_EQ(std::count(names.begin(), names.end(), dialer.stream_name(end)), 0);
      names.push_back(dialer.stream_name(end));
    }
  }
}

TEST(TcpHandshake, AnOfferToShareIsSealed) {
  const Offer offer{3, random_nonce()};
  for (const bool seals : {true, false}) {
    auto [a, b] = socket_pair();
    std::optional<Handshake> dialer(dial(std::move(a), offer));
    Handshake listener = listen(std::move(b));
    talk(*dialer, listener);
    ASSERT_EQ(listener.state(), State::kProven);
    EXPECT_EQ(listener.offer().stream, offer.stream);
    EXPECT_EQ(listener.answer(Verdict::kShare, 5), State::kSealing);
    EXPECT_EQ(dialer->advance(), State::kDone);
    EXPECT_EQ(dialer->verdict(), Verdict::kShare);
    EXPECT_EQ(listener.advance(), State::kSealing);
    if (seals) dialer->seal();
    dialer.reset();
    EXPECT_EQ(listener.advance(), seals ? State::kDone : State::kBroken);
  }
}

// What is offered is proven: nobody on the way changes it.
TEST(TcpHandshake, AChangedOfferIsForged) {
  for (const std::size_t at : {std::size_t{32}, kProofBytes - 1}) {
    auto [a, b] = socket_pair();
    auto [c, d] = socket_pair();
    Handshake dialer = dial(std::move(a));
    Handshake listener = listen(std::move(d));
    std::array<std::byte, 128> bytes;
    const auto pass = [&](int from, int to) {
      const ssize_t n = ::recv(from, bytes.data(), bytes.size(), 0);
      if (n == static_cast<ssize_t>(kProofBytes)) bytes[at] ^= std::byte{1};
      EXPECT_EQ(::send(to, bytes.data(), static_cast<std::size_t>(n), 0), n);
    };
    dialer.advance();
    pass(b.get(), c.get());
    listener.advance();
    pass(c.get(), b.get());
    dialer.advance();
    pass(b.get(), c.get());
    EXPECT_EQ(listener.advance(), State::kForged);
  }
}

TEST(TcpHandshake, AGroupThatIsNotThereIsAbsent) {
  auto [a, b] = socket_pair();
  Handshake dialer = Handshake::dial(std::move(a), std::make_shared<Identity>(kDialer), 1, kGroup + 1, {});
  Handshake listener = listen(std::move(b));
  talk(dialer, listener);
  EXPECT_EQ(dialer.state(), State::kAbsent);
  EXPECT_EQ(listener.state(), State::kAbsent);
}

TEST(TcpHandshake, LeavesPayloadBehindTheVerdictUnread) {
  auto [a, b] = socket_pair();
  Handshake dialer = dial(std::move(a));
  Handshake listener = listen(std::move(b));
  talk(dialer, listener);
  listener.answer(Verdict::kAccept, 5);
  ASSERT_EQ(::send(listener.fd(), "payload", 7, 0), 7);
  ASSERT_EQ(dialer.advance(), State::kDone);
  char got[8] = "";
  EXPECT_EQ(::recv(dialer.fd(), got, sizeof(got), 0), 7);
  EXPECT_STREQ(got, "payload");
}

TEST(TcpHandshake, EachThingThatIsBoundMatters) {
  const Identity wrong[] = {{"Secret", "group", 1, 4}, {"secret", "other", 1, 4}};
  for (const Identity& identity : wrong) {
    auto [a, b] = socket_pair();
    Handshake dialer = dial(std::move(a));
    Handshake listener = listen(std::move(b), identity);
    talk(dialer, listener);
    EXPECT_EQ(dialer.state(), State::kForged);
    EXPECT_NE(listener.state(), State::kProven);
  }
  const Identity misplaced[] = {{"secret", "group", 3, 4}, {"secret", "group", 1, 2}, {"secret", "group", 2, 4}};
  for (const Identity& identity : misplaced) {  // dialed for rank 1; knows two ranks only; is the dialer itself
    auto [a, b] = socket_pair();
    Handshake dialer = dial(std::move(a));
    Handshake listener = listen(std::move(b), identity);
    talk(dialer, listener);
    EXPECT_EQ(listener.state(), State::kForged);
  }
}

// Whoever knows no secret can relay a listener's own words back to it: as a dialer's proof they are worth nothing.
TEST(TcpHandshake, ReflectedProofIsForged) {
  auto [a, b] = socket_pair();
  Handshake honest = dial(std::move(a));
  honest.advance();
  std::array<std::byte, 128> bytes;
  const ssize_t hello = ::recv(b.get(), bytes.data(), bytes.size(), 0);
  ASSERT_GT(hello, 0);
  auto [c, d] = socket_pair();
  Handshake listener = listen(std::move(d));
  ASSERT_EQ(::send(c.get(), bytes.data(), static_cast<std::size_t>(hello), 0), hello);
  listener.advance();
  ASSERT_EQ(::recv(c.get(), bytes.data(), bytes.size(), 0), ssize_t{kReplyBytes});
  const Proof reflected{decode_reply(std::span(bytes).first(kReplyBytes))->proof, {}};
  ASSERT_EQ(::send(c.get(), encode(reflected).data(), kProofBytes, 0), ssize_t{kProofBytes});
  EXPECT_EQ(listener.advance(), State::kForged);
}

TEST(TcpHandshake, ReplayedConversationIsForged) {
  auto [a, b] = socket_pair();
  auto [c, d] = socket_pair();
  Handshake dialer = dial(std::move(a));
  Handshake listener = listen(std::move(d));
  std::array<std::byte, kHelloBytes> hello;
  std::array<std::byte, kReplyBytes> reply;
  std::array<std::byte, kProofBytes> proof;
  dialer.advance();
  ASSERT_EQ(::recv(b.get(), hello.data(), hello.size(), 0), ssize_t{kHelloBytes});
  ASSERT_EQ(::send(c.get(), hello.data(), hello.size(), 0), ssize_t{kHelloBytes});
  listener.advance();
  ASSERT_EQ(::recv(c.get(), reply.data(), reply.size(), 0), ssize_t{kReplyBytes});
  ASSERT_EQ(::send(b.get(), reply.data(), reply.size(), 0), ssize_t{kReplyBytes});
  dialer.advance();
  ASSERT_EQ(::recv(b.get(), proof.data(), proof.size(), 0), ssize_t{kProofBytes});
  ASSERT_EQ(::send(c.get(), proof.data(), proof.size(), 0), ssize_t{kProofBytes});
  ASSERT_EQ(listener.advance(), State::kProven);

  auto [e, f] = socket_pair();
  Handshake again = listen(std::move(f));
  ASSERT_EQ(::send(e.get(), hello.data(), hello.size(), 0), ssize_t{kHelloBytes});
  ASSERT_EQ(::send(e.get(), proof.data(), proof.size(), 0), ssize_t{kProofBytes});
  EXPECT_EQ(again.advance(), State::kForged);
}

TEST(TcpHandshake, MessagesArriveAsTheyWereSentAndNothingElseIsOne) {
  const Hello hello{3, 0x80000001, 0x8000000000000001, random_nonce()};
  const auto hello_bytes = encode(hello);
  const auto got = decode_hello(hello_bytes);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->from, hello.from);
  EXPECT_EQ(got->to, hello.to);
  EXPECT_EQ(got->group, hello.group);
  EXPECT_EQ(got->nonce, hello.nonce);
  const Reply reply{random_nonce(), random_nonce()};
  const auto reply_bytes = encode(reply);
  ASSERT_TRUE(decode_reply(reply_bytes));
  EXPECT_EQ(decode_reply(reply_bytes)->nonce, reply.nonce);
  EXPECT_EQ(decode_reply(reply_bytes)->proof, reply.proof);
  for (std::size_t n = 0; n < hello_bytes.size(); ++n) EXPECT_FALSE(decode_hello(std::span(hello_bytes).first(n)));
  for (std::size_t n = 0; n < reply_bytes.size(); ++n) EXPECT_FALSE(decode_reply(std::span(reply_bytes).first(n)));
  auto other_version = hello_bytes;
  other_version[7] = std::byte{'1'};
  EXPECT_FALSE(decode_hello(other_version));
  EXPECT_FALSE(decode_proof(reply_bytes));
  const Proof proof{random_nonce(), {0x80000001, random_nonce()}};
  const auto got_proof = decode_proof(encode(proof));
  ASSERT_TRUE(got_proof);
  EXPECT_EQ(got_proof->digest, proof.digest);
  EXPECT_EQ(got_proof->offer.inlet, proof.offer.inlet);
  EXPECT_EQ(got_proof->offer.stream, proof.offer.stream);
  for (int value = 0; value < 256; ++value) {
    const auto bytes = encode(Answer{static_cast<Verdict>(value), 0x80000001});
    const auto answer = decode_answer(bytes);
    EXPECT_EQ(answer.has_value(), value >= 1 && value <= 7) << value;
    if (answer) {
      EXPECT_EQ(answer->inlet, 0x80000001);
    }
    EXPECT_FALSE(decode_answer(std::span(bytes).first(kVerdictBytes - 1)));
  }
  EXPECT_FALSE(decode_answer({}));
}

// A listener of any version from the third on begins with its own, so both ends of such a connection know.
TEST(TcpHandshake, EachSideTellsTheOtherItsVersion) {
  auto [a, b] = socket_pair();
  Handshake listener = listen(std::move(b));
  ASSERT_EQ(::send(a.get(), "TUTTITC5 and what it has to say", 31, 0), 31);
  EXPECT_EQ(listener.advance(), State::kOtherVersion);
  char said[8];
  ASSERT_EQ(::recv(a.get(), said, sizeof said, 0), 8);
  EXPECT_EQ(std::string_view(said, 8), "TUTTITC4");

  auto [c, d] = socket_pair();
  Handshake dialer = dial(std::move(c));
  EXPECT_EQ(dialer.advance(), State::kTalking);
  for (const std::string_view piece : {"TUTTI", "TC"}) {
    ASSERT_EQ(::send(d.get(), piece.data(), piece.size(), 0), static_cast<ssize_t>(piece.size()));
    EXPECT_EQ(dialer.advance(), State::kTalking);
  }
  ASSERT_EQ(::send(d.get(), "5", 1, 0), 1);
  EXPECT_EQ(dialer.advance(), State::kOtherVersion);
}

TEST(TcpHandshake, GarbageAndSilenceAndEnd) {
  auto [a, b] = socket_pair();
  Handshake listener = listen(std::move(b));
  EXPECT_EQ(listener.advance(), State::kTalking);
  const char* const text = "GET / HTTP/1.1\r\nHost: example\r\n\r\n and some more to fill the whole of it";
  ASSERT_GE(::send(a.get(), text, std::strlen(text), 0), ssize_t{kHelloBytes});
  EXPECT_EQ(listener.advance(), State::kForeign);

  auto [c, d] = socket_pair();
  Handshake left = listen(std::move(d));
  ASSERT_EQ(::send(c.get(), "TUTTI", 5, 0), 5);
  EXPECT_EQ(left.advance(), State::kTalking);
  c.reset();
  EXPECT_EQ(left.advance(), State::kBroken);
}

}  // namespace
}  // namespace tutti::tcp
