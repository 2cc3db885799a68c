#include "transport/tcp/handshake.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <string_view>

namespace tutti::tcp {
namespace {

template <class Array>
std::string_view view(const Array& bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), sizeof(Array)};
}

}  // namespace

Handshake::Handshake(UniqueFd fd, std::shared_ptr<const Identity> self, int peer, bool dialer)
    : fd_(std::move(fd)),
      self_(std::move(self)),
      peer_(peer),
      dialer_(dialer),
      state_(dialer ? State::kConnecting : State::kTalking) {}

Handshake Handshake::dial(UniqueFd fd, std::shared_ptr<const Identity> self, int peer, std::uint64_t group,
                          const Offer& offer) {
  Handshake h(std::move(fd), std::move(self), peer, true);
  h.group_ = group;
  h.offer_ = offer;
  h.dial_nonce_ = random_nonce();
  return h;
}

Handshake Handshake::listen(UniqueFd fd, Lookup lookup) {
  Handshake h(std::move(fd), nullptr, -1, false);
  h.lookup_ = std::move(lookup);
  h.listen_nonce_ = random_nonce();
  h.expect(kHelloBytes);
  return h;
}

Handshake::State Handshake::advance() noexcept {
  if (state_ == State::kConnecting) finish_connect();
  while (state_ == State::kTalking || state_ == State::kSealing) {
    const ssize_t got = ::recv(fd_.get(), buffer_.data() + received_, expected_ - received_, MSG_DONTWAIT);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) break;
    if (got <= 0) {
      state_ = State::kBroken;
      break;
    }
    received_ += static_cast<std::size_t>(got);
    if (messages_ == 0) look_at_speaker();
    if (received_ < expected_ || over()) continue;
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
    error_ = error;
    return;
  }
  sockaddr_storage remote{};
  length = sizeof(remote);
  if (::getpeername(fd_.get(), reinterpret_cast<sockaddr*>(&remote), &length) != 0) return;  // still on its way
  state_ = State::kTalking;
  send(encode(Hello{static_cast<std::uint32_t>(self_->rank), static_cast<std::uint32_t>(peer_), group_, dial_nonce_}));
  expect(kReplyBytes);
}

// At once: what is no message of ours need not have the length of one.
void Handshake::look_at_speaker() noexcept {
  const Speaker speaker = speaker_of(std::span(buffer_).first(received_));
  if (speaker == Speaker::kOurs) return;
  // A dialer is told whom it has reached.
  if (!dialer_ && speaker == Speaker::kOfOtherVersion) send(encode(Reply{}));
  state_ = speaker == Speaker::kOfOtherVersion ? State::kOtherVersion : State::kForeign;
}

void Handshake::on_message() {
  ++messages_;
  if (!dialer_) {
    if (state_ == State::kSealing) {
      withdrawn_ = message()[0] == kWithdrawn;
      state_ = withdrawn_ ? State::kBroken : State::kDone;
    } else {
      messages_ == 1 ? on_hello() : on_proof();
    }
  } else {
    messages_ == 1 ? on_reply() : messages_ == 2 ? on_verdict() : on_last_words();
  }
}

void Handshake::on_hello() {
  const std::optional<Hello> hello = decode_hello(message());
  if (!hello) {
    state_ = State::kForged;
    return;
  }
  self_ = lookup_(*hello);
  if (self_ == nullptr) {
    send(encode(Reply{}));
    state_ = State::kAbsent;
    return;
  }
  const auto rank = static_cast<std::uint32_t>(self_->rank);
  if (hello->from >= static_cast<std::uint32_t>(self_->size) || hello->from == rank || hello->to != rank) {
    state_ = State::kForged;
    return;
  }
  peer_ = static_cast<int>(hello->from);
  dial_nonce_ = hello->nonce;
  send(encode(Reply{listen_nonce_, proof("tutti tcp listen")}));
  expect(kProofBytes);
}

void Handshake::on_reply() {
  const std::optional<Reply> reply = decode_reply(message());
  if (reply && reply->absent()) {
    state_ = State::kAbsent;
    return;
  }
  if (reply) listen_nonce_ = reply->nonce;
  if (!reply || !equal(reply->proof, proof("tutti tcp listen"))) {
    state_ = State::kForged;
    return;
  }
  send(encode(Proof{proof("tutti tcp dial", offer_), offer_}));
  expect(kVerdictBytes);
}

void Handshake::on_proof() {
  const std::optional<Proof> given = decode_proof(message());
  if (given) offer_ = given->offer;
  state_ = given && equal(given->digest, proof("tutti tcp dial", offer_)) ? State::kProven : State::kForged;
}

void Handshake::on_verdict() noexcept {
  const std::optional<Answer> answer = decode_answer(message());
  if (answer) verdict_ = answer->verdict;
  if (answer) inlet_ = answer->inlet;
  state_ = answer ? State::kDone : State::kForged;
  if (!answer || verdict_ != Verdict::kGone) return;
  state_ = State::kTalking;
  expect(sizeof words_);
}

void Handshake::on_last_words() noexcept {
  std::ranges::copy(message(), words_.begin());
  state_ = State::kDone;
}

Handshake::State Handshake::answer(Verdict verdict, std::uint32_t inlet) noexcept {
  verdict_ = verdict;
  state_ = verdict == Verdict::kShare ? State::kSealing : State::kDone;
  expect(kSealBytes);
  send(encode(Answer{verdict, inlet}));
  return state_;
}

void Handshake::take_leave(const LastWords& words) noexcept {
  if (answer(Verdict::kGone, 0) == State::kDone) send(words);
}

void Handshake::seal() noexcept {
  const std::array<std::byte, kSealBytes> bytes{};
  send(bytes);
}

void Handshake::withdraw() noexcept {
  if (!dialer_ || messages_ < 1 || state_ > State::kDone || offer_.stream == StreamName{})
    return;  // it has not offered
  send(std::array<std::byte, kSealBytes>{kWithdrawn});
}

void Handshake::expect(std::size_t bytes) noexcept {
  expected_ = bytes;
  received_ = 0;
}

// Some dozen bytes always fit into the empty buffer of a fresh socket: if they do not, something is wrong with it.
void Handshake::send(std::span<const std::byte> bytes) noexcept {
  ssize_t sent = 0;
  do {
    sent = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  if (sent != static_cast<ssize_t>(bytes.size())) state_ = State::kBroken;
}

Digest Handshake::proof(const char* label, const Offer& offer) const {
  std::array<std::byte, 12> numbers;
  const int dialer = dialer_ ? self_->rank : peer_;
  const int listener = dialer_ ? peer_ : self_->rank;
  put_u32(numbers.data(), static_cast<std::uint32_t>(dialer));
  put_u32(numbers.data() + 4, static_cast<std::uint32_t>(listener));
  put_u32(numbers.data() + 8, offer.inlet);
  const std::array<std::string_view, 6> parts = {
      label, self_->communicator, view(numbers), view(dial_nonce_), view(listen_nonce_), view(offer.stream)};
  return hmac(self_->secret, parts);
}

StreamName Handshake::stream_name(bool dialing_end) const {
  return proof(dialing_end ? "tutti tcp dialing end" : "tutti tcp listening end");
}

}  // namespace tutti::tcp
