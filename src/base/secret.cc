#include "base/secret.h"

// SHA-256 by its own functions: those for any digest (EVP) take OpenSSL's locks and memory, and its random generator
// does too. A child that is forked while another thread holds one of them would wait for it for ever.
#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/crypto.h>
#include <openssl/sha.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Block = std::array<unsigned char, SHA256_CBLOCK>;

class Hash {
 public:
  Hash() noexcept { SHA256_Init(&state_); }
  Hash& add(const void* data, std::size_t bytes) noexcept {
    SHA256_Update(&state_, data, bytes);
    return *this;
  }
  Digest digest() noexcept {
    Digest digest;
    SHA256_Final(reinterpret_cast<unsigned char*>(digest.data()), &state_);
    return digest;
  }

 private:
  SHA256_CTX state_;
};

Block with_each(Block block, unsigned char mask) noexcept {
  for (unsigned char& byte : block) byte ^= mask;
  return block;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  if (::getentropy(nonce.data(), nonce.size()) != 0) {
    throw_system_error(ErrorKind::kInternal, "the system's random generator (getentropy)", errno);
  }
  return nonce;
}

std::string hexadecimal(std::span<const std::byte> bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  text.reserve(2 * bytes.size());
  for (const std::byte b : bytes) {
    text.push_back(kDigits[std::to_integer<unsigned>(b) >> 4]);
    text.push_back(kDigits[std::to_integer<unsigned>(b) & 15]);
  }
  return text;
}

std::string random_secret() { return hexadecimal(random_nonce()); }

Digest sha256(std::string_view message) noexcept { return Hash().add(message.data(), message.size()).digest(); }

Digest hmac_sha256(std::string_view key, std::string_view message) noexcept {
  Block padded{};
  if (key.size() > padded.size()) {
    const Digest hashed = sha256(key);
    std::memcpy(padded.data(), hashed.data(), hashed.size());
  } else {
    std::copy(key.begin(), key.end(), padded.begin());
  }
  const Block inner = with_each(padded, 0x36), outer = with_each(padded, 0x5c);
  const Digest hashed = Hash().add(inner.data(), inner.size()).add(message.data(), message.size()).digest();
  return Hash().add(outer.data(), outer.size()).add(hashed.data(), hashed.size()).digest();
}

Digest hmac(std::string_view secret, std::span<const std::string_view> parts) {
  ByteWriter message;
  for (const std::string_view part : parts) message.u64(part.size()).raw(part);
  return hmac_sha256(secret, message.str());
}

bool equal(const Digest& a, const Digest& b) noexcept { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace tutti
