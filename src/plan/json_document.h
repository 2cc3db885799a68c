// A JSON text read by parts: the elements of one array of the top-level object are handed over one by one and then
// forgotten, so a plan of hundreds of megabytes never stands in memory as JSON values.
//
// Trusts nothing: bounds depth, refuses duplicate keys and text that is no JSON, and names the place ("/gpus/3/id").
#pragma once

#include <cstddef>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tutti::plan {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxJsonDepth = 12;

// Throws InvalidArgument "<path>: <what>".
[[noreturn]] void throw_at(const std::string& path, const std::string& what);

// The top-level object without the array called `streamed`, each of whose elements goes to `take` with its index.
// `streamed` itself stays as an empty array, so a caller sees whether it was there.
Json read_document(std::string_view text, std::string_view streamed,
                   const std::function<void(std::size_t index, Json&& element)>& take);

// A value and the way to it, for error messages. Refers to the value and to the cursor it came from.
class Cursor {
 public:
  explicit Cursor(const Json& value, std::string root = "") : value_(&value), root_(std::move(root)) {}

  const Json& value() const { return *value_; }
  std::string path() const;
  [[noreturn]] void fail(const std::string& what) const { throw_at(path(), what); }

  bool has(std::string_view key) const;
  Cursor at(std::string_view key) const;  // fails if it is missing
  Cursor at(std::size_t index) const;

  // Fails unless every key of this object is one of `known`.
  void allow_only(std::initializer_list<std::string_view> known) const;

  void expect_object() const;
  std::size_t array_size(std::size_t most) const;
  std::int64_t integer(std::int64_t least, std::int64_t most) const;
  std::uint64_t unsigned_integer() const;
  bool boolean() const;
  std::string text(std::size_t longest) const;

 private:
  Cursor(const Json& value, const Cursor* parent, std::string_view key, std::size_t index)
      : value_(&value), parent_(parent), key_(key), index_(index) {}

  const Json* value_;
  const Cursor* parent_ = nullptr;
  std::string_view key_;
  std::size_t index_ = 0;
  std::string root_;
};

}  // namespace tutti::plan
