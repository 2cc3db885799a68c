// The messages of handshake.h as bytes. What is read here was sent by somebody who has proven nothing.
//
// Thread rule: free functions.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "base/secret.h"
#include "transport/link.h"

namespace tutti::tcp {

// Name and version of the protocol, the version last: with it each side begins, in every version from the third on.
inline constexpr std::array<char, 8> kMagic = {'T', 'U', 'T', 'T', 'I', 'T', 'C', '4'};

// Whose bytes a connection begins with, as far as those that have come say.
enum class Speaker : std::uint8_t { kOurs, kOfOtherVersion, kOther };
Speaker speaker_of(std::span<const std::byte> first_bytes) noexcept;

// The end of a Stream (stream.h), as its two ends call it.
using StreamName = Digest;

inline constexpr std::size_t kHelloBytes = kMagic.size() + 4 + 4 + 8 + sizeof(Nonce);
inline constexpr std::size_t kReplyBytes = kMagic.size() + sizeof(Nonce) + sizeof(Digest);
inline constexpr std::size_t kProofBytes = sizeof(Digest) + 4 + sizeof(StreamName);
inline constexpr std::size_t kVerdictBytes = 1 + 4;
inline constexpr std::size_t kSealBytes = 1;
inline constexpr std::byte kWithdrawn{1};  // in place of the seal
inline constexpr std::size_t kLongestMessage = kReplyBytes;
static_assert(kHelloBytes <= kLongestMessage && kProofBytes <= kLongestMessage && sizeof(LastWords) <= kLongestMessage);

enum class Verdict : std::uint8_t {
  kAccept = 1,   // the connection stands, and is a stream from now on
  kYield = 2,    // the listener, being the lower rank, is dialing itself: wait for that
  kRefuse = 3,   // the listener has, or had, a connection to this rank already
  kFull = 4,     // the listener has no descriptor for this connection: try again a few times
  kShare = 5,    // the group goes over the stream that the dialer has named; this connection ends
  kStarved = 6,  // the listener has no memory for a connection to this rank, and there will be none
  kGone = 7      // the listener has failed or left: its last words follow
};

struct Hello {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  std::uint64_t group = 0;  // the listener's number of the group: one listener serves many
  Nonce nonce{};
};
std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept;
std::optional<Hello> decode_hello(std::span<const std::byte> bytes) noexcept;

// All zeros: the listener has no such group, or has it no more.
struct Reply {
  Nonce nonce{};
  Digest proof{};

  bool absent() const noexcept { return nonce == Nonce{} && proof == Digest{}; }
};
std::array<std::byte, kReplyBytes> encode(const Reply& reply) noexcept;
std::optional<Reply> decode_reply(std::span<const std::byte> bytes) noexcept;

// Where the dialer takes what is sent to it, and the stream that it would share: the listener's end of it.
struct Offer {
  std::uint32_t inlet = 0;
  StreamName stream{};  // zeros: none
};
struct Proof {
  Digest digest{};
  Offer offer;
};
std::array<std::byte, kProofBytes> encode(const Proof& proof) noexcept;
std::optional<Proof> decode_proof(std::span<const std::byte> bytes) noexcept;

struct Answer {
  Verdict verdict = Verdict::kRefuse;
  std::uint32_t inlet = 0;  // the listener's
};
std::array<std::byte, kVerdictBytes> encode(const Answer& answer) noexcept;
std::optional<Answer> decode_answer(std::span<const std::byte> bytes) noexcept;

void put_u32(std::byte* to, std::uint32_t value) noexcept;  // little-endian

}  // namespace tutti::tcp
