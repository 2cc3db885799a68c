// What ranks tell each other before memory is exchanged: lists of fields, each preceded by its length.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tutti::cuda {

// Names this process among others: ranks with equal tokens share one address space.
const std::string& process_token();

void put_field(std::string& text, std::string_view field);
// Takes the first field off `text`. Throws Error(kInternal) if there is none.
std::string take_field(std::string_view& text);
// The same for a number that is not negative.
std::uint64_t take_number(std::string_view& text);

}  // namespace tutti::cuda
