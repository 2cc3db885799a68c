#include "channel/cuda/cards.h"

#include <charconv>

#include "base/secret.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

[[noreturn]] void unreadable() {
  throw_error(ErrorKind::kInternal, "a rank's card of GPU memory cannot be read: use one version on all ranks");
}

std::uint64_t number_of(std::string_view text) {
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) unreadable();
  return value;
}

}  // namespace

const std::string& process_token() {
  static const std::string token = random_secret();
  return token;
}

void put_field(std::string& text, std::string_view field) {
  text += std::to_string(field.size()) + ":";
  text += field;
}

std::string take_field(std::string_view& text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) unreadable();
  const std::uint64_t length = number_of(text.substr(0, colon));
  if (text.size() - colon - 1 < length) unreadable();
  std::string field(text.substr(colon + 1, length));
  text.remove_prefix(colon + 1 + length);
  return field;
}

std::uint64_t take_number(std::string_view& text) { return number_of(take_field(text)); }

}  // namespace tutti::cuda
