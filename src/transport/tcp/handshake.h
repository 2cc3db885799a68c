// The first bytes of a connection: both ends prove that they know the secret and are the ranks they say.
//
//   dialer                                   listener
//   hello: magic, from, to, group, nonce D  ->
//                                       <-   reply: magic, nonce L, HMAC("listen", communicator, from, to, D, L)
//   proof: HMAC("dial", communicator, from, to, D, L, offer), offer  ->
//                                       <-   verdict, the listener's inlet
//                                       <-   after kGone: the listener's last words
//   seal: one byte, after kShare        ->
//
// The labels differ, so a proof cannot be sent back to its maker; both nonces are fresh, so it cannot be replayed.
// Nothing that the other end sends is used before its proof has been checked, except to choose which HMAC to compute,
// and to say what it is that answers there.
// No more is read than a message holds: what follows the verdict is payload.
//
// The verdict settles who keeps the connection when both ranks dial at once: only the lower rank decides
// (tcp_transport.cc), so there is never a moment at which the two ends could choose differently.
//
// Each pair of ranks of each group proves itself by a handshake of its own. Where the two processes have a stream
// already (stream.h), the dialer offers to share it, by the name that the listener has given to its end: whoever is not
// that end knows no such name. After kShare the connection has one more byte to carry: a listener that sees it end
// without one knows that nobody is at the other end of what it has agreed to; a one says that the dialer had no memory.
//
// Ownership: owns its socket until take_socket(). Thread rule: one thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
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
    kConnecting,    // dialer: until the socket is writable
    kTalking,       // until it is readable
    kProven,        // listener: peer() is who it says; call answer()
    kSealing,       // listener: has answered kShare, and waits for the seal
    kDone,          // verdict() was given or received
    kUnreachable,   // nobody listens there
    kBroken,        // the connection ended before the verdict
    kForged,        // the other end does not know the secret, or is of another job
    kAbsent,        // the listener has no such group (any more)
    kOtherVersion,  // the other end speaks another version of this protocol
    kForeign,       // it speaks none of them
  };

  // Who a listener is for whoever says hello; null: it has no such group.
  using Lookup = std::function<std::shared_ptr<const Identity>(const Hello&)>;

  // `fd` is a non-blocking socket on which connect() was called. `group`: the listener's number of the group.
  static Handshake dial(UniqueFd fd, std::shared_ptr<const Identity> self, int peer, std::uint64_t group,
                        const Offer& offer);
  // `fd` is a non-blocking accepted socket.
  static Handshake listen(UniqueFd fd, Lookup lookup);

  // Goes on as far as it can without waiting.
  State advance() noexcept;
  // Listener, in kProven: sends the verdict and goes to kDone, or kSealing after kShare, or to kBroken.
  State answer(Verdict verdict, std::uint32_t inlet) noexcept;
  // The same, with the verdict kGone.
  void take_leave(const LastWords& words) noexcept;
  // Dialer, after kShare.
  void seal() noexcept;
  // Dialer that has offered to share, at any time: it has no memory for that. A listener that has agreed hears so.
  void withdraw() noexcept;

  State state() const noexcept { return state_; }
  bool over() const noexcept { return state_ >= State::kDone; }
  bool has_proved_itself() const noexcept { return dialer_ && messages_ >= 1; }
  // Dialer: has proved itself, to make a new stream, or has been told to. The listener may have agreed already.
  bool may_be_accepted() const noexcept {
    if (!has_proved_itself() || state_ > State::kDone) return false;
    return offer_.stream == StreamName{} || (state_ == State::kDone && verdict_ == Verdict::kAccept);
  }
  // Dialer, after kGone.
  const LastWords& last_words() const noexcept { return words_; }
  Verdict verdict() const noexcept { return verdict_; }
  bool withdrawn() const noexcept { return withdrawn_; }                          // listener, in kBroken after kSealing
  const std::shared_ptr<const Identity>& self() const noexcept { return self_; }  // listener: null before the hello
  int peer() const noexcept { return peer_; }
  const Offer& offer() const noexcept { return offer_; }             // the dialer's
  std::uint32_t listeners_inlet() const noexcept { return inlet_; }  // dialer: of the verdict
  StreamName stream_name(bool dialing_end) const;                    // should the connection become a stream
  int fd() const noexcept { return fd_.get(); }
  int error() const noexcept { return error_; }  // kUnreachable: the errno of the attempt
  UniqueFd take_socket() noexcept { return std::move(fd_); }

 private:
  Handshake(UniqueFd fd, std::shared_ptr<const Identity> self, int peer, bool dialer);

  void finish_connect() noexcept;
  void look_at_speaker() noexcept;
  void on_message();
  void on_hello();
  void on_reply();
  void on_proof();
  void on_verdict() noexcept;
  void on_last_words() noexcept;
  void expect(std::size_t bytes) noexcept;
  void send(std::span<const std::byte> bytes) noexcept;
  Digest proof(const char* label, const Offer& offer = {}) const;

  std::span<const std::byte> message() const noexcept { return std::span(buffer_).first(expected_); }

  UniqueFd fd_;
  std::shared_ptr<const Identity> self_;
  Lookup lookup_;
  int peer_;
  bool dialer_;
  State state_;
  Verdict verdict_ = Verdict::kRefuse;
  std::uint64_t group_ = 0;
  std::uint32_t inlet_ = 0;
  Offer offer_;
  LastWords words_{};
  int messages_ = 0;  // received so far
  bool withdrawn_ = false;
  int error_ = 0;
  std::size_t expected_ = 0;
  std::size_t received_ = 0;
  std::array<std::byte, kLongestMessage> buffer_{};
  Nonce dial_nonce_{};
  Nonce listen_nonce_{};
};

}  // namespace tutti::tcp
