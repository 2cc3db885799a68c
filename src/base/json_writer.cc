#include "base/json_writer.h"

#include "base/utf8.h"

namespace tutti {

JsonWriter& JsonWriter::key(std::string_view name) {
  next();
  quote(name);
  end_key();
  return *this;
}

JsonWriter& JsonWriter::json_key(std::string_view name) {
  next();
  text_ += name;
  end_key();
  return *this;
}

void JsonWriter::end_key() {
  text_ += indent_ < 0 ? ":" : ": ";
  has_key_ = true;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  next();
  quote(text);
  return *this;
}

JsonWriter& JsonWriter::json(std::string_view text) {
  next();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::begin(char bracket) {
  next();
  text_ += bracket;
  ++depth_;
  first_ = true;
  return *this;
}

JsonWriter& JsonWriter::end(char bracket) {
  --depth_;
  if (!first_) new_line();
  first_ = false;
  text_ += bracket;
  return *this;
}

void JsonWriter::next() {
  if (!has_key_ && depth_ > 0) {
    if (!first_) text_ += ',';
    new_line();
  }
  has_key_ = false;
  first_ = false;
}

void JsonWriter::new_line() {
  if (indent_ < 0) return;
  text_ += '\n';
  text_.append(static_cast<std::size_t>(indent_) * static_cast<std::size_t>(depth_), ' ');
}

void JsonWriter::quote(std::string_view text) {
  constexpr std::string_view kNamed = "\b\f\n\r\t\"\\", kNames = "bfnrt\"\\";
  constexpr char kDigits[] = "0123456789abcdef";
  text_ += '"';
  while (!text.empty()) {
    const std::size_t bytes = bytes_of_character(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (bytes == 0) {
      text_ += '?';
    } else if (const auto named = kNamed.find(text.front()); named != std::string_view::npos) {
      text_ += '\\';
      text_ += kNames[named];
    } else if (first < ' ') {
      text_ += "\\u00";
      text_ += kDigits[first >> 4];
      text_ += kDigits[first & 15];
    } else {
      text_ += text.substr(0, bytes);
    }
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  text_ += '"';
}

}  // namespace tutti
