// Numbers, sizes and truth values in text: of the environment, of files, of messages. Thread rule: free functions.
#pragma once

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

inline std::string lower(std::string_view text) {
  std::string result(text);
  std::transform(result.begin(), result.end(), result.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

// All of the text is a number, from `least` to `most`; else false, and `value` stays.
template <typename T>
bool parse_number(std::string_view text, T least, T most, T& value) {
  T parsed{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  if (error != std::errc{} || end != text.data() + text.size() || parsed < least || parsed > most) return false;
  value = parsed;
  return true;
}

template <typename T>
bool parse_number(std::string_view text, T& value) {
  return parse_number(text, std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max(), value);
}

// "65536", "64K", "64KB", "64KiB", "2M", "1G", "1T": powers of 1024, any case.
inline std::optional<std::size_t> parse_bytes(std::string_view text) {
  std::size_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{}) return std::nullopt;
  const std::string unit = lower(std::string_view(end, static_cast<std::size_t>(text.data() + text.size() - end)));
  if (unit.empty() || unit == "b") return value;
  constexpr std::string_view kPrefixes = "kmgt";
  const std::size_t power = kPrefixes.find(unit[0]);
  const std::string_view suffix = std::string_view(unit).substr(1);
  if (power == std::string_view::npos || !(suffix.empty() || suffix == "b" || suffix == "ib")) return std::nullopt;
  const std::size_t shift = 10 * (power + 1);
  if (value > std::numeric_limits<std::size_t>::max() >> shift) return std::nullopt;
  return value << shift;
}

// Any case; else false, and `value` stays.
inline bool parse_bool(std::string_view text, bool& value) {
  const std::string word = lower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") {
    value = true;
  } else if (word == "0" || word == "false" || word == "no" || word == "off") {
    value = false;
  } else {
    return false;
  }
  return true;
}

}  // namespace tutti
