#include "base/secret.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti {

Nonce random_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) {
    throw_error(ErrorKind::kInternal, "the system's random generator gives no bytes (OpenSSL's RAND_bytes failed)");
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

Digest sha256(std::string_view message) {
  Digest digest;
  unsigned int length = 0;
  if (EVP_Digest(message.data(), message.size(), reinterpret_cast<unsigned char*>(digest.data()), &length, EVP_sha256(),
                 nullptr) != 1 ||
      length != digest.size()) {
    throw_error(ErrorKind::kInternal, "OpenSSL cannot compute SHA-256 (is it disabled by its configuration?)");
  }
  return digest;
}

Digest hmac_sha256(std::string_view key, std::string_view message) {
  Digest digest;
  unsigned int length = 0;
  // HMAC() refuses a null key, which an empty view may have.
  const char* key_bytes = key.empty() ? "" : key.data();
  const unsigned char* done = HMAC(EVP_sha256(), key_bytes, static_cast<int>(key.size()),
                                   reinterpret_cast<const unsigned char*>(message.data()), message.size(),
                                   reinterpret_cast<unsigned char*>(digest.data()), &length);
  if (done == nullptr || length != digest.size()) {
    throw_error(ErrorKind::kInternal,
                "OpenSSL cannot compute HMAC-SHA-256 (is SHA-256 disabled by its configuration?)");
  }
  return digest;
}

Digest hmac(std::string_view secret, std::span<const std::string_view> parts) {
  ByteWriter message;
  for (const std::string_view part : parts) message.u64(part.size()).raw(part);
  return hmac_sha256(secret, message.str());
}

bool equal(const Digest& a, const Digest& b) noexcept { return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0; }

}  // namespace tutti
