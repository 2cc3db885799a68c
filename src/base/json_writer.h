// JSON that is written as it comes, never as values in memory: nothing has to be taken apart where memory is wanting,
// and what is wanting is memory for the text alone. Throws std::bad_alloc then, and nothing else.
//
// Whoever calls keeps to the grammar: in objects a key before each value. Owned by one thread.
#pragma once

#include <concepts>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>

namespace tutti {

class JsonWriter {
 public:
  // `indent`: a line for each value, so many spaces deeper in each container; below 0: all on one line.
  explicit JsonWriter(int indent = -1) noexcept : indent_(indent) {}

  JsonWriter& begin_object() { return begin('{'); }
  JsonWriter& end_object() { return end('}'); }
  JsonWriter& begin_array() { return begin('['); }
  JsonWriter& end_array() { return end(']'); }

  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);  // '?' for each byte that is no UTF-8
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(bool truth) { return json(truth ? "true" : "false"); }
  template <std::integral Number>
  JsonWriter& value(Number number) {
    return json(std::to_string(number));
  }
  template <std::ranges::input_range List>
  requires(!std::convertible_to<const List&, std::string_view>) JsonWriter& value(const List& list) {
    begin_array();
    for (const auto& element : list) value(element);
    return end_array();
  }
  // As they stand: a value, and a key with its quotes.
  JsonWriter& json(std::string_view text);
  JsonWriter& json_key(std::string_view name);

  template <class Value>
  JsonWriter& member(std::string_view name, const Value& what) {
    key(name);
    return value(what);
  }

  std::string take() && { return std::move(text_); }

 private:
  JsonWriter& begin(char bracket);
  JsonWriter& end(char bracket);
  void next();  // what stands before a key, or before a value without one
  void end_key();
  void new_line();
  void quote(std::string_view text);

  const int indent_;
  int depth_ = 0;
  bool first_ = true;     // nothing stands in this container yet
  bool has_key_ = false;  // a key waits for its value
  std::string text_;
};

}  // namespace tutti
