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

namespace tutti::tcp {

// Name and version of the protocol.
inline constexpr std::array<char, 8> kMagic = {'T', 'U', 'T', 'T', 'I', 'T', 'C', '1'};

inline constexpr std::size_t kHelloBytes = kMagic.size() + 4 + 4 + sizeof(Nonce);
inline constexpr std::size_t kReplyBytes = sizeof(Nonce) + sizeof(Digest);
inline constexpr std::size_t kProofBytes = sizeof(Digest);
inline constexpr std::size_t kVerdictBytes = 1;
inline constexpr std::size_t kLongestMessage = kReplyBytes;
static_assert(kHelloBytes <= kLongestMessage);

enum class Verdict : std::uint8_t {
  kAccept = 1,  // the connection stands
  kYield = 2,   // the listener, being the lower rank, is dialing itself: wait for that
  kRefuse = 3,  // the listener has, or had, a connection to this rank already
  kFull = 4,    // the listener has no descriptor for this connection: try again a few times
};

struct Hello {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  Nonce nonce{};
};
std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept;
std::optional<Hello> decode_hello(std::span<const std::byte> bytes) noexcept;

struct Reply {
  Nonce nonce{};
  Digest proof{};
};
std::array<std::byte, kReplyBytes> encode(const Reply& reply) noexcept;
std::optional<Reply> decode_reply(std::span<const std::byte> bytes) noexcept;

std::optional<Digest> decode_proof(std::span<const std::byte> bytes) noexcept;
std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes) noexcept;

void put_u32(std::byte* to, std::uint32_t value) noexcept;  // little-endian

}  // namespace tutti::tcp
