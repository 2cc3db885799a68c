// 64-bit FNV-1a over texts and numbers, the same on every machine: what ranks compare.
#pragma once

#include <cstdint>
#include <string_view>

namespace tutti {

class Identity {
 public:
  Identity& add(std::string_view text) noexcept {
    for (const char c : text) step(static_cast<unsigned char>(c));
    return add(std::uint64_t{text.size()});  // so that "ab"+"c" and "a"+"bc" differ
  }
  Identity& add(std::uint64_t number) noexcept {
    for (int shift = 0; shift < 64; shift += 8) step(number >> shift & 255);
    return *this;
  }
  // Never 0.
  std::uint64_t value() const noexcept { return state_ != 0 ? state_ : 1; }

 private:
  void step(std::uint64_t byte) noexcept { state_ = (state_ ^ byte) * 0x100000001b3ULL; }

  std::uint64_t state_ = 0xcbf29ce484222325ULL;
};

// As a CallRecord holds it; never 0 for what is not 0.
inline std::uint32_t fold(std::uint64_t identity) noexcept {
  const auto folded = static_cast<std::uint32_t>(identity ^ (identity >> 32));
  return folded != 0 || identity == 0 ? folded : 1;
}

}  // namespace tutti
