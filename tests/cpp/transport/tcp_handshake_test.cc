#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <utility>

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

void talk(Handshake& a, Handshake& b) {
  for (int i = 0; i < 8; ++i) {
    a.advance();
    b.advance();
  }
}

TEST(TcpHandshake, BothProveThemselvesAndTheVerdictArrives) {
  for (const Verdict verdict : {Verdict::kAccept, Verdict::kYield, Verdict::kRefuse, Verdict::kFull}) {
    auto [a, b] = socket_pair();
    Handshake dialer = Handshake::dial(std::move(a), kDialer, 1);
    Handshake listener = Handshake::listen(std::move(b), kListener);
    talk(dialer, listener);
    ASSERT_EQ(listener.state(), State::kProven);
    EXPECT_EQ(listener.peer(), 2);
    EXPECT_EQ(dialer.state(), State::kTalking);
    EXPECT_EQ(listener.answer(verdict), State::kDone);
    EXPECT_EQ(dialer.advance(), State::kDone);
    EXPECT_EQ(dialer.verdict(), verdict);
  }
}

TEST(TcpHandshake, LeavesPayloadBehindTheVerdictUnread) {
  auto [a, b] = socket_pair();
  Handshake dialer = Handshake::dial(std::move(a), kDialer, 1);
  Handshake listener = Handshake::listen(std::move(b), kListener);
  talk(dialer, listener);
  listener.answer(Verdict::kAccept);
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
    Handshake dialer = Handshake::dial(std::move(a), kDialer, 1);
    Handshake listener = Handshake::listen(std::move(b), identity);
    talk(dialer, listener);
    EXPECT_EQ(dialer.state(), State::kForged);
    EXPECT_NE(listener.state(), State::kProven);
  }
  const Identity misplaced[] = {{"secret", "group", 3, 4}, {"secret", "group", 1, 2}, {"secret", "group", 2, 4}};
  for (const Identity& identity : misplaced) {  // dialed for rank 1; knows two ranks only; is the dialer itself
    auto [a, b] = socket_pair();
    Handshake dialer = Handshake::dial(std::move(a), kDialer, 1);
    Handshake listener = Handshake::listen(std::move(b), identity);
    talk(dialer, listener);
    EXPECT_EQ(listener.state(), State::kForged);
  }
}

// Whoever knows no secret can relay a listener's own words back to it: as a dialer's proof they are worth nothing.
TEST(TcpHandshake, ReflectedProofIsForged) {
  auto [a, b] = socket_pair();
  Handshake honest = Handshake::dial(std::move(a), kDialer, 1);
  honest.advance();
  std::array<std::byte, 128> bytes;
  const ssize_t hello = ::recv(b.get(), bytes.data(), bytes.size(), 0);
  ASSERT_GT(hello, 0);
  auto [c, d] = socket_pair();
  Handshake listener = Handshake::listen(std::move(d), kListener);
  ASSERT_EQ(::send(c.get(), bytes.data(), static_cast<std::size_t>(hello), 0), hello);
  listener.advance();
  ASSERT_EQ(::recv(c.get(), bytes.data(), bytes.size(), 0), 64);
  ASSERT_EQ(::send(c.get(), bytes.data() + 32, 32, 0), 32);
  EXPECT_EQ(listener.advance(), State::kForged);
}

TEST(TcpHandshake, ReplayedConversationIsForged) {
  auto [a, b] = socket_pair();
  auto [c, d] = socket_pair();
  Handshake dialer = Handshake::dial(std::move(a), kDialer, 1);
  Handshake listener = Handshake::listen(std::move(d), kListener);
  std::array<std::byte, 48> hello;
  std::array<std::byte, 64> reply;
  std::array<std::byte, 32> proof;
  dialer.advance();
  ASSERT_EQ(::recv(b.get(), hello.data(), hello.size(), 0), 48);
  ASSERT_EQ(::send(c.get(), hello.data(), hello.size(), 0), 48);
  listener.advance();
  ASSERT_EQ(::recv(c.get(), reply.data(), reply.size(), 0), 64);
  ASSERT_EQ(::send(b.get(), reply.data(), reply.size(), 0), 64);
  dialer.advance();
  ASSERT_EQ(::recv(b.get(), proof.data(), proof.size(), 0), 32);
  ASSERT_EQ(::send(c.get(), proof.data(), proof.size(), 0), 32);
  ASSERT_EQ(listener.advance(), State::kProven);

  auto [e, f] = socket_pair();
  Handshake again = Handshake::listen(std::move(f), kListener);
  ASSERT_EQ(::send(e.get(), hello.data(), hello.size(), 0), 48);
  ASSERT_EQ(::send(e.get(), proof.data(), proof.size(), 0), 32);
  EXPECT_EQ(again.advance(), State::kForged);
}

TEST(TcpHandshake, MessagesArriveAsTheyWereSentAndNothingElseIsOne) {
  const Hello hello{3, 0x80000001, random_nonce()};
  const auto hello_bytes = encode(hello);
  const auto got = decode_hello(hello_bytes);
  ASSERT_TRUE(got);
  EXPECT_EQ(got->from, hello.from);
  EXPECT_EQ(got->to, hello.to);
  EXPECT_EQ(got->nonce, hello.nonce);
  const Reply reply{random_nonce(), random_nonce()};
  const auto reply_bytes = encode(reply);
  ASSERT_TRUE(decode_reply(reply_bytes));
  EXPECT_EQ(decode_reply(reply_bytes)->nonce, reply.nonce);
  EXPECT_EQ(decode_reply(reply_bytes)->proof, reply.proof);
  for (std::size_t n = 0; n < hello_bytes.size(); ++n) EXPECT_FALSE(decode_hello(std::span(hello_bytes).first(n)));
  for (std::size_t n = 0; n < reply_bytes.size(); ++n) EXPECT_FALSE(decode_reply(std::span(reply_bytes).first(n)));
  auto other_version = hello_bytes;
  other_version[7] = std::byte{'2'};
  EXPECT_FALSE(decode_hello(other_version));
  EXPECT_FALSE(decode_proof(reply_bytes));
  for (int value = 0; value < 256; ++value) {
    const std::byte byte{static_cast<std::uint8_t>(value)};
    EXPECT_EQ(decode_verdict({&byte, 1}).has_value(), value >= 1 && value <= 4) << value;
  }
  EXPECT_FALSE(decode_verdict({}));
}

TEST(TcpHandshake, GarbageAndSilenceAndEnd) {
  auto [a, b] = socket_pair();
  Handshake listener = Handshake::listen(std::move(b), kListener);
  EXPECT_EQ(listener.advance(), State::kTalking);
  const char* const text = "GET / HTTP/1.1\r\nHost: example\r\n\r\n and some more to fill";
  ASSERT_GT(::send(a.get(), text, std::strlen(text), 0), 48);
  EXPECT_EQ(listener.advance(), State::kForged);

  auto [c, d] = socket_pair();
  Handshake left = Handshake::listen(std::move(d), kListener);
  ASSERT_EQ(::send(c.get(), "TUTTI", 5, 0), 5);
  EXPECT_EQ(left.advance(), State::kTalking);
  c.reset();
  EXPECT_EQ(left.advance(), State::kBroken);
}

}  // namespace
}  // namespace tutti::tcp
