// The first bytes of a connection: both ends prove that they know the secret and are the ranks they say.
//
//   dialer                                   listener
//   hello: magic, from, to, nonce D     ->
//                                       <-   reply: nonce L, HMAC("listen", communicator, from, to, D, L)
//   proof: HMAC("dial", communicator, from, to, D, L)  ->
//                                       <-   verdict: one byte
//
// The labels differ, so a proof cannot be sent back to its maker; both nonces are fresh, so it cannot be replayed.
// Nothing that the other end sends is used before its proof has been checked, except to choose which HMAC to compute.
// No more is read than a message holds: what follows the verdict is payload.
//
// The verdict settles who keeps the connection when both ranks dial at once: only the lower rank decides
// (tcp_transport.cc), so there is never a moment at which the two ends could choose differently.
//
// Ownership: owns its socket until take_socket(). Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "base/secret.h"
#include "base/unique_fd.h"
#include "transport/tcp/handshake_messages.h"

namespace tutti::tcp {

struct Identity {
  std::string secret;
  std::string communicator;
  int rank = 0;
  int size = 1;
};

class Handshake {
 public:
  enum class State : std::uint8_t {
    kConnecting,   // dialer: until the socket is writable
    kTalking,      // until it is readable
    kProven,       // listener: peer() is who it says; call answer()
    kDone,         // verdict() was given or received
    kUnreachable,  // nobody listens there
    kBroken,       // the connection ended before the verdict
    kForged,       // the other end does not know the secret, or does not speak this protocol
  };

  // `fd` is a non-blocking socket on which connect() was called.
  static Handshake dial(UniqueFd fd, const Identity& self, int peer);
  // `fd` is a non-blocking accepted socket.
  static Handshake listen(UniqueFd fd, const Identity& self);

  // Goes on as far as it can without waiting.
  State advance() noexcept;
  // Listener, in kProven: sends the verdict and goes to kDone, or to kBroken.
  State answer(Verdict verdict) noexcept;

  State state() const noexcept { return state_; }
  bool over() const noexcept { return state_ >= State::kDone; }
  Verdict verdict() const noexcept { return verdict_; }
  int peer() const noexcept { return peer_; }
  int fd() const noexcept { return fd_.get(); }
  int error() const noexcept { return error_; }  // kUnreachable: the errno of the attempt
  UniqueFd take_socket() noexcept { return std::move(fd_); }

 private:
  Handshake(UniqueFd fd, const Identity& self, int peer, bool dialer);

  void finish_connect() noexcept;
  void on_message();
  void on_hello();
  void on_reply();
  void on_proof();
  void on_verdict() noexcept;
  void expect(std::size_t bytes) noexcept;
  void send(std::span<const std::byte> bytes) noexcept;
  Digest proof(const char* label) const;

  std::span<const std::byte> message() const noexcept { return std::span(buffer_).first(expected_); }

  UniqueFd fd_;
  const Identity* self_;
  int peer_;
  bool dialer_;
  State state_;
  Verdict verdict_ = Verdict::kRefuse;
  int messages_ = 0;  // received so far
  int error_ = 0;
  std::size_t expected_ = 0;
  std::size_t received_ = 0;
  std::array<std::byte, kLongestMessage> buffer_{};
  Nonce dial_nonce_{};
  Nonce listen_nonce_{};
};

}  // namespace tutti::tcp
