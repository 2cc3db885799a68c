// The first bytes of a connection between hosts: each end of a handshake against a stranger that says anything.
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

#include "fuzz_main.h"
#include "transport/tcp/handshake.h"

namespace tutti::fuzz {
namespace {

using tcp::Handshake;

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span<const char>(text.data(), text.size()));
}

template <class Array>
std::string text(const Array& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void decode_all(std::string_view bytes) {
  if (const auto hello = tcp::decode_hello(as_bytes(bytes))) {
    require(text(tcp::encode(*hello)) == bytes, "a hello is what its encoder writes");
  }
  if (const auto reply = tcp::decode_reply(as_bytes(bytes))) {
    require(text(tcp::encode(*reply)) == bytes, "a reply is what its encoder writes");
  }
  if (const auto proof = tcp::decode_proof(as_bytes(bytes))) {
    require(text(tcp::encode(*proof)) == bytes, "a proof is what its encoder writes");
  }
  if (const auto answer = tcp::decode_answer(as_bytes(bytes))) {
    require(text(tcp::encode(*answer)) == bytes, "an answer is what its encoder writes");
  }
}

// Both ends of a connection. Others on the machine may have all descriptors, or all memory for sockets, for a while.
std::array<UniqueFd, 2> connection() {
  constexpr int kTries = 1000, kPauseMs = 10;
  int fds[2] = {-1, -1};
  for (int i = 0; ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) != 0; ++i) {
    const bool passes = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
    require(passes && i < kTries, "a pair of sockets can be made");
    ::poll(nullptr, 0, kPauseMs);
  }
  return {UniqueFd(fds[0]), UniqueFd(fds[1])};
}

// What the stranger sends comes in two pieces, then the connection ends.
Handshake::State meet(std::string_view bytes, std::size_t first, bool dialer) {
  static const auto self = std::make_shared<tcp::Identity>(tcp::Identity{random_secret(), "group", 1, 4});
  auto [stranger, own] = connection();
  const auto lookup = [](const tcp::Hello& hello) { return hello.group == 1 ? self : nullptr; };
  Handshake handshake =
      dialer ? Handshake::dial(std::move(own), self, 2, 1, {}) : Handshake::listen(std::move(own), lookup);
  handshake.advance();
  for (const std::string_view piece : {bytes.substr(0, first), bytes.substr(first)}) {
    if (::send(stranger.get(), piece.data(), piece.size(), MSG_NOSIGNAL) < 0) break;
    handshake.advance();
  }
  stranger.reset();
  return handshake.advance();
}

}  // namespace

void run(std::string_view bytes) {
  decode_all(bytes);
  if (bytes.empty()) return;
  const std::size_t first = std::min<std::size_t>(static_cast<unsigned char>(bytes.back()), bytes.size());
  for (const bool dialer : {false, true}) {
    const Handshake::State state = meet(bytes, first, dialer);
    require(state >= Handshake::State::kBroken, "a stranger gets nowhere");
  }
}

std::vector<std::string> seeds() {
  const std::string hello = text(tcp::encode(tcp::Hello{2, 1, 1, Nonce{}}));
  const std::string reply = text(tcp::encode(tcp::Reply{}));
  const std::string proof = text(tcp::encode(tcp::Proof{}));
  const std::string answer = text(tcp::encode(tcp::Answer{tcp::Verdict::kAccept, 3}));
  return {hello, reply, hello + proof, reply + answer, proof, answer};
}

}  // namespace tutti::fuzz
