// Enumerations by the names that they print as.
#pragma once

#include <string>
#include <vector>

#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti {

// The value of an enumeration that prints as `text`. Throws Error(kInvalidArgument) naming all there are.
template <typename Enum>
Enum from_name(const std::string& text, const char* what, int count) {
  std::string names;
  for (int i = 0; i < count; ++i) {
    const auto value = static_cast<Enum>(i);
    if (to_string(value) == text) return value;
    names += (i > 0 ? ", " : "") + std::string(to_string(value));
  }
  throw_error(ErrorKind::kInvalidArgument, "\"" + text + "\" is no " + what + "; there are " + names);
}

template <typename Enum>
std::vector<std::string> names_of(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(to_string(static_cast<Enum>(i)));
  return names;
}

}  // namespace tutti
