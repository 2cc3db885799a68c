// Writing and reading of small binary messages: little-endian integers and strings preceded by their length. And a
// number in digits.
//
// Ownership: a reader borrows its input. Thread rule: values of one thread. A reader never reads past its input: what
// is missing reads as zero and leaves ok() false, so that a caller checks once, at the end.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/secret.h"

namespace tutti {

inline std::string_view text_of(const Digest& d) noexcept {
  return {reinterpret_cast<const char*>(d.data()), d.size()};
}

// All digits of a number.
template <std::unsigned_integral Number>
std::string hexadecimal(Number value) {
  std::string text;
  for (int shift = 8 * sizeof value - 4; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15];
  return text;
}

class ByteWriter {
 public:
  ByteWriter& u8(std::uint8_t v) { return number(v, 1); }
  ByteWriter& u32(std::uint32_t v) { return number(v, 4); }
  ByteWriter& u64(std::uint64_t v) { return number(v, 8); }
  ByteWriter& raw(std::string_view bytes) {
    out_.append(bytes);
    return *this;
  }
  ByteWriter& digest(const Digest& d) { return raw(text_of(d)); }
  ByteWriter& text(std::string_view bytes) { return u32(static_cast<std::uint32_t>(bytes.size())).raw(bytes); }

  const std::string& str() const& noexcept { return out_; }
  std::string str() && noexcept { return std::move(out_); }

 private:
  ByteWriter& number(std::uint64_t v, int bytes) {
    for (int i = 0; i < bytes; ++i) out_.push_back(static_cast<char>(v >> (8 * i)));
    return *this;
  }
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view in) noexcept : in_(in) {}

  std::uint8_t u8() noexcept { return static_cast<std::uint8_t>(number(1)); }
  std::uint32_t u32() noexcept { return static_cast<std::uint32_t>(number(4)); }
  std::uint64_t u64() noexcept { return number(8); }
  std::string_view raw(std::size_t bytes) noexcept {
    if (bytes > in_.size()) {
      ok_ = false;
      in_ = {};
      return {};
    }
    const std::string_view taken = in_.substr(0, bytes);
    in_.remove_prefix(bytes);
    return taken;
  }
  std::string_view text() noexcept { return raw(u32()); }
  Digest digest() noexcept {
    Digest d{};
    const std::string_view bytes = raw(d.size());
    for (std::size_t i = 0; i < bytes.size(); ++i) d[i] = static_cast<std::byte>(bytes[i]);
    return d;
  }

  bool ok() const noexcept { return ok_; }
  // All was there and nothing is left over.
  bool done() const noexcept { return ok_ && in_.empty(); }
  std::size_t left() const noexcept { return in_.size(); }

 private:
  std::uint64_t number(std::size_t bytes) noexcept {
    const std::string_view taken = raw(bytes);
    std::uint64_t v = 0;
    for (std::size_t i = 0; i < taken.size(); ++i) {
      v |= static_cast<std::uint64_t>(static_cast<unsigned char>(taken[i])) << (8 * i);
    }
    return v;
  }
  std::string_view in_;
  bool ok_ = true;
};

}  // namespace tutti
