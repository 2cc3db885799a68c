// Text that is cut, or comes from elsewhere: what is shown of it is UTF-8, which Python decodes strictly.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace tutti {

// At most the first `most` bytes of a text, not cut in the middle of a character.
std::string_view first_of(std::string_view text, std::size_t most) noexcept;

// Bytes of the character that the text, which is not empty, begins with; 0 if it begins with none.
std::size_t bytes_of_character(std::string_view text) noexcept;

// The text as a part of one line: '?' in place of each control character and each byte that is no UTF-8.
std::string in_a_line(std::string_view text);

}  // namespace tutti
