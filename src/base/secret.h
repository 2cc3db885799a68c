// The shared secret of a job and its proofs. SHA-256 is OpenSSL's, random bytes are the system's. Thread rule: any
// thread, also in a forked child whatever other threads did at the fork: no lock is taken.
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace tutti {

using Digest = std::array<std::byte, 32>;
using Nonce = std::array<std::byte, 32>;

Nonce random_nonce();         // throws Error(kInternal)
std::string random_secret();  // 256 bits, hexadecimal

std::string hexadecimal(std::span<const std::byte> bytes);

Digest sha256(std::string_view message) noexcept;

// HMAC-SHA-256 of the message as it stands (RFC 2104).
Digest hmac_sha256(std::string_view key, std::string_view message) noexcept;

// HMAC-SHA-256 over the parts, each preceded by its length (8 bytes, little-endian).
Digest hmac(std::string_view secret, std::span<const std::string_view> parts);
bool equal(const Digest& a, const Digest& b) noexcept;  // in constant time

}  // namespace tutti
