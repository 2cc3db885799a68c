#include "transport/tcp/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <string_view>

namespace tutti::tcp {
namespace {

// Name and version of the protocol.
constexpr std::array<char, 8> kMagic = {'T', 'U', 'T', 'T', 'I', 'T', 'C', '1'};
constexpr std::size_t kHelloBytes = kMagic.size() + 4 + 4 + sizeof(Nonce);
constexpr std::size_t kReplyBytes = sizeof(Nonce) + sizeof(Digest);
constexpr std::size_t kProofBytes = sizeof(Digest);

void put_u32(std::byte* to, std::uint32_t value) noexcept {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

std::uint32_t get_u32(const std::byte* from) noexcept {
  std::uint32_t value = 0;
  for (int i = 0; i < 4; ++i) value |= std::to_integer<std::uint32_t>(from[i]) << (8 * i);
  return value;
}

template <class Array>
std::string_view view(const Array& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), sizeof(Array)};
}

}  // namespace

Handshake::Handshake(UniqueFd fd, const Identity& self, int peer, bool dialer)
    : fd_(std::move(fd)),
      self_(&self),
      peer_(peer),
      dialer_(dialer),
      state_(dialer ? State::kConnecting : State::kTalking) {}

Handshake Handshake::dial(UniqueFd fd, const Identity& self, int peer) {
  Handshake h(std::move(fd), self, peer, true);
  h.dial_nonce_ = random_nonce();
  return h;
}

Handshake Handshake::listen(UniqueFd fd, const Identity& self) {
  Handshake h(std::move(fd), self, -1, false);
  h.listen_nonce_ = random_nonce();
  h.expect(kHelloBytes);
  return h;
}

Handshake::State Handshake::advance() noexcept {
  if (state_ == State::kConnecting) finish_connect();
  while (state_ == State::kTalking) {
    const ssize_t got = ::recv(fd_.get(), buffer_.data() + received_, expected_ - received_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      state_ = State::kBroken;
      break;
    }
    received_ += static_cast<std::size_t>(got);
    if (received_ < expected_) continue;
    try {
      on_message();
    } catch (const std::exception&) {  // no memory for an HMAC: the other end may try again
      state_ = State::kBroken;
    }
  }
  return state_;
}

void Handshake::finish_connect() noexcept {
  int error = 0;
  socklen_t length = sizeof(error);
  if (::getsockopt(fd_.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error == EINPROGRESS) return;
  if (error != 0) {
    state_ = error == ECONNRESET ? State::kBroken : State::kUnreachable;
    return;
  }
  sockaddr_storage remote{};
  length = sizeof(remote);
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&remote), &length) != 0) return;  // still on its way
  std::array<std::byte, kHelloBytes> hello;
  std::memcpy(hello.data(), kMagic.data(), kMagic.size());
  put_u32(hello.data() + kMagic.size(), static_cast<std::uint32_t>(self_->rank));
  put_u32(hello.data() + kMagic.size() + 4, static_cast<std::uint32_t>(peer_));
  std::memcpy(hello.data() + kMagic.size() + 8, dial_nonce_.data(), sizeof(Nonce));
  state_ = State::kTalking;
  send(hello.data(), hello.size());
  expect(kReplyBytes);
}

void Handshake::on_message() {
  ++messages_;
  if (!dialer_) {
    messages_ == 1 ? on_hello() : on_proof();
  } else {
    messages_ == 1 ? on_reply() : on_verdict();
  }
}

void Handshake::on_hello() {
  const std::uint32_t from = get_u32(buffer_.data() + kMagic.size());
  const std::uint32_t to = get_u32(buffer_.data() + kMagic.size() + 4);
  const bool sane = std::memcmp(buffer_.data(), kMagic.data(), kMagic.size()) == 0 &&
                    from < static_cast<std::uint32_t>(self_->size) && from != static_cast<std::uint32_t>(self_->rank) &&
                    to == static_cast<std::uint32_t>(self_->rank);
  if (!sane) {
    state_ = State::kForged;
    return;
  }
  peer_ = static_cast<int>(from);
  std::memcpy(dial_nonce_.data(), buffer_.data() + kMagic.size() + 8, sizeof(Nonce));
  const Digest digest = proof("tutti tcp listen");
  std::array<std::byte, kReplyBytes> reply;
  std::memcpy(reply.data(), listen_nonce_.data(), sizeof(Nonce));
  std::memcpy(reply.data() + sizeof(Nonce), digest.data(), sizeof(Digest));
  send(reply.data(), reply.size());
  expect(kProofBytes);
}

void Handshake::on_reply() {
  Digest digest;
  std::memcpy(listen_nonce_.data(), buffer_.data(), sizeof(Nonce));
  std::memcpy(digest.data(), buffer_.data() + sizeof(Nonce), sizeof(Digest));
  if (!equal(digest, proof("tutti tcp listen"))) {
    state_ = State::kForged;
    return;
  }
  const Digest mine = proof("tutti tcp dial");
  send(mine.data(), mine.size());
  expect(1);
}

void Handshake::on_proof() {
  Digest digest;
  std::memcpy(digest.data(), buffer_.data(), sizeof(Digest));
  state_ = equal(digest, proof("tutti tcp dial")) ? State::kProven : State::kForged;
}

void Handshake::on_verdict() noexcept {
  const int value = std::to_integer<int>(buffer_[0]);
  if (value < static_cast<int>(Verdict::kAccept) || value > static_cast<int>(Verdict::kRefuse)) {
    state_ = State::kForged;
    return;
  }
  verdict_ = static_cast<Verdict>(value);
  state_ = State::kDone;
}

Handshake::State Handshake::answer(Verdict verdict) noexcept {
  const std::byte value{static_cast<std::uint8_t>(verdict)};
  verdict_ = verdict;
  state_ = State::kDone;
  send(&value, 1);
  return state_;
}

void Handshake::expect(std::size_t bytes) noexcept {
  expected_ = bytes;
  received_ = 0;
}

// Some dozen bytes always fit into the empty buffer of a fresh socket: if they do not, something is wrong with it.
void Handshake::send(const std::byte* data, std::size_t bytes) noexcept {
  ssize_t sent = 0;
  do {
    sent = ::send(fd_.get(), data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(bytes)) state_ = State::kBroken;
}

Digest Handshake::proof(const char* label) const {
  std::array<std::byte, 8> ranks;
  const int dialer = dialer_ ? self_->rank : peer_;
  const int listener = dialer_ ? peer_ : self_->rank;
  put_u32(ranks.data(), static_cast<std::uint32_t>(dialer));
  put_u32(ranks.data() + 4, static_cast<std::uint32_t>(listener));
  const std::array<std::string_view, 5> parts = {label, self_->communicator, view(ranks), view(dial_nonce_),
                                                 view(listen_nonce_)};
  return hmac(self_->secret, parts);
}

}  // namespace tutti::tcp
