#include "transport/tcp/handshake_messages.h"

#include <cstring>
#include <string_view>

#include "base/bytes.h"

namespace tutti::tcp {
namespace {

std::string_view text(std::span<const std::byte> bytes) noexcept {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// Writes a message field by field, and takes no memory.
template <std::size_t N>
struct Message {
  std::array<std::byte, N> bytes;
  std::byte* to = bytes.data();

  Message& u32(std::uint32_t value) noexcept {
    put_u32(to, value);
    to += 4;
    return *this;
  }
  Message& raw(const auto& field) noexcept {
    std::memcpy(to, field.data(), field.size());
    to += field.size();
    return *this;
  }
};

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
  Message<kHelloBytes> out;
  out.raw(kMagic).u32(hello.from).u32(hello.to);
  out.u32(static_cast<std::uint32_t>(hello.group)).u32(static_cast<std::uint32_t>(hello.group >> 32)).raw(hello.nonce);
  return out.bytes;
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
  return Message<kReplyBytes>().raw(kMagic).raw(reply.nonce).raw(reply.proof).bytes;
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
  return Message<kProofBytes>().raw(proof.digest).u32(proof.offer.inlet).raw(proof.offer.stream).bytes;
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
  return Message<kVerdictBytes>().raw(std::array{answer.verdict}).u32(answer.inlet).bytes;
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
