#include "base/utf8.h"

#include <algorithm>
#include <bit>

namespace tutti {
namespace {

bool continues(char c) noexcept { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

std::size_t bytes_of_character(std::string_view text) noexcept {
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};  // of so many bytes: one that needs fewer is no UTF-8
  const auto first = static_cast<unsigned char>(text.front());
  if (first < 0x80) return 1;
  const auto bytes = static_cast<std::size_t>(std::countl_one(first));
  if (bytes < 2 || bytes > 4 || bytes > text.size()) return 0;
  char32_t code = first & (0x7Fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if (!continues(text[i])) return 0;
    code = code << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code < kLeast[bytes] || code > 0x10FFFF || surrogate ? 0 : bytes;
}

std::string_view first_of(std::string_view text, std::size_t most) noexcept {
  std::size_t length = std::min(text.size(), most);
  while (length > 0 && length < text.size() && continues(text[length])) --length;
  return text.substr(0, length);
}

std::string in_a_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const std::size_t bytes = bytes_of_character(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (bytes == 0 || first < ' ' || first == 127) {
      line += '?';
    } else {
      line += text.substr(0, bytes);
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return line;
}

}  // namespace tutti
