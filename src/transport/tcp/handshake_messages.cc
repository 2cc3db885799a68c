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

Speaker speaker_of(std::span<const std::byte> first_bytes) noexcept {
  constexpr std::size_t kName = kMagic.size() - 1;
  const std::string_view magic(kMagic.data(), kMagic.size()), come = text(first_bytes).substr(0, kMagic.size());
  if (magic.starts_with(come)) return Speaker::kOurs;
  return come.size() > kName && come.starts_with(magic.substr(0, kName)) ? Speaker::kOfOtherVersion : Speaker::kOther;
}

std::array<std::byte, kHelloBytes> encode(const Hello& hello) noexcept {
  std::array<std::byte, kHelloBytes> bytes;
  std::byte* to = bytes.data();
  std::memcpy(to, kMagic.data(), kMagic.size());
  to += kMagic.size();
  put_u32(to, hello.from);
  put_u32(to + 4, hello.to);
  put_u32(to + 8, static_cast<std::uint32_t>(hello.group));
  put_u32(to + 12, static_cast<std::uint32_t>(hello.group >> 32));
  std::memcpy(to + 16, hello.nonce.data(), sizeof(Nonce));
  return bytes;
}

std::optional<Hello> decode_hello(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  if (in.raw(kMagic.size()) != std::string_view(kMagic.data(), kMagic.size())) return std::nullopt;
  Hello hello;
  hello.from = in.u32();
  hello.to = in.u32();
  hello.group = in.u64();
  hello.nonce = in.digest();
  if (!in.done()) return std::nullopt;
  return hello;
}

std::array<std::byte, kReplyBytes> encode(const Reply& reply) noexcept {
  std::array<std::byte, kReplyBytes> bytes;
  std::byte* const to = bytes.data();
  std::memcpy(to, kMagic.data(), kMagic.size());
  std::memcpy(to + kMagic.size(), reply.nonce.data(), sizeof(Nonce));
  std::memcpy(to + kMagic.size() + sizeof(Nonce), reply.proof.data(), sizeof(Digest));
  return bytes;
}

std::optional<Reply> decode_reply(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  if (in.raw(kMagic.size()) != std::string_view(kMagic.data(), kMagic.size())) return std::nullopt;
  Reply reply;
  reply.nonce = in.digest();
  reply.proof = in.digest();
  if (!in.done()) return std::nullopt;
  return reply;
}

std::array<std::byte, kProofBytes> encode(const Proof& proof) noexcept {
  std::array<std::byte, kProofBytes> bytes;
  std::byte* const to = bytes.data();
  std::memcpy(to, proof.digest.data(), sizeof(Digest));
  put_u32(to + sizeof(Digest), proof.offer.inlet);
  std::memcpy(to + sizeof(Digest) + 4, proof.offer.stream.data(), sizeof(StreamName));
  return bytes;
}

std::optional<Proof> decode_proof(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  Proof proof;
  proof.digest = in.digest();
  proof.offer.inlet = in.u32();
  proof.offer.stream = in.digest();
  if (!in.done()) return std::nullopt;
  return proof;
}

std::array<std::byte, kVerdictBytes> encode(const Answer& answer) noexcept {
  std::array<std::byte, kVerdictBytes> bytes;
  bytes[0] = static_cast<std::byte>(answer.verdict);
  put_u32(bytes.data() + 1, answer.inlet);
  return bytes;
}

std::optional<Answer> decode_answer(std::span<const std::byte> bytes) noexcept {
  ByteReader in(text(bytes));
  const int value = in.u8();
  Answer answer{static_cast<Verdict>(value), in.u32()};
  if (!in.done() || value < static_cast<int>(Verdict::kAccept) || value > static_cast<int>(Verdict::kGone)) {
    return std::nullopt;
  }
  return answer;
}

}  // namespace tutti::tcp
