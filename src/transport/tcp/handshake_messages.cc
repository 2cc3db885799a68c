#include "transport/tcp/handshake_messages.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace tutti::tcp {
namespace {

std::string_view text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

void put_u32(std::byte* to, std::uint32_t value) noexcept {
  for (int i = 0; i < 4; ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloBytes> bytes;
  std::memcpy(bytes.data(), kMagic.data(), kMagic.size());
  put_u32(bytes.data() + kMagic.size(), hello.from);
  put_u32(bytes.data() + kMagic.size() + 4, hello.to);
  std::memcpy(bytes.data() + kMagic.size() + 8, hello.nonce.data(), sizeof(Nonce));
  return bytes;
}

std::optional<Hello> decode_hello(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  if (in.raw(kMagic.size()) != std::string_view(kMagic.data(), kMagic.size())) return std::nullopt;
  Hello hello;
  hello.from = in.u32();
  hello.to = in.u32();
  hello.nonce = in.digest();
  if (!in.done()) return std::nullopt;
  return hello;
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) noexcept {
  std::array<std::byte, kReplyBytes> bytes;
  std::memcpy(bytes.data(), reply.nonce.data(), sizeof(Nonce));
  std::memcpy(bytes.data() + sizeof(Nonce), reply.proof.data(), sizeof(Digest));
  return bytes;
}

std::optional<Reply> decode_reply(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  Reply reply;
  reply.nonce = in.digest();
  reply.proof = in.digest();
  if (!in.done()) return std::nullopt;
  return reply;
}

std::optional<Digest> decode_proof(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  const Digest digest = in.digest();
  if (!in.done()) return std::nullopt;
  return digest;
}

std::optional<Verdict> decode_verdict(std::span<const std::byte> bytes) noexcept {
  if (bytes.size() != kVerdictBytes) return std::nullopt;
  const int value = std::to_integer<int>(bytes[0]);
  if (value < static_cast<int>(Verdict::kAccept) || value > static_cast<int>(Verdict::kFull)) return std::nullopt;
  return static_cast<Verdict>(value);
}

}  // namespace tutti::tcp
