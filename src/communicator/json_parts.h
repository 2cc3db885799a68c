// The parts of a JSON text that this library has written, or a device's plug-in, found in place: as values in memory
// they would have to be taken apart, which takes memory.
//
// Throws Error(kInternal) where the brackets, strings and commas of a text are not those of JSON.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace tutti {

// Of an object: names, as they stand between their quotes, and values.
std::vector<std::pair<std::string_view, std::string_view>> members_of(std::string_view object);

std::vector<std::string_view> elements_of(std::string_view array);

// Of a string: what stands between its quotes.
std::string_view unquoted(std::string_view string);

}  // namespace tutti
