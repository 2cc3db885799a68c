// Enumerations by the names that they print as, tables in their order, and lists of numbers as text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tutti/error.h"
#include "tutti/types.h"

namespace tutti {

// The value of an enumeration that prints as `text`.
template <typename Enum>
std::optional<Enum> named(std::string_view text, int count) {
  for (int i = 0; i < count; ++i) {
    if (to_string(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <typename Enum>
std::vector<std::string> names_of(int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(to_string(static_cast<Enum>(i)));
  return names;
}

// "0<between>1<between>2".
inline std::string joined(const std::vector<int>& numbers, std::string_view between) {
  std::string text;
  for (const int number : numbers) {
    if (!text.empty()) text += between;
    text += std::to_string(number);
  }
  return text;
}

// Whether the i-th row of a table is of the i-th value of its enumeration, which is the member `kKey` of each row.
template <auto kKey, class Table>
constexpr bool in_order(const Table& table) {
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (static_cast<std::size_t>(table[i].*kKey) != i) return false;
  }
  return true;
}

// named(), or Error(kInvalidArgument) with all names there are.
template <typename Enum>
Enum from_name(const std::string& text, const char* what, int count) {
  if (const auto value = named<Enum>(text, count)) return *value;
  std::string names;
  for (const std::string& name : names_of<Enum>(count)) names += (names.empty() ? "" : ", ") + name;
  throw_error(ErrorKind::kInvalidArgument, "\"" + text + "\" is no " + what + "; there are " + names);
}

}  // namespace tutti
