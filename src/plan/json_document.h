// A JSON text read by parts: the elements of some arrays are handed over one by one and then forgotten, so a plan of
// hundreds of megabytes never stands in memory as JSON values.
//
// Trusts nothing: bounds depth and the values that stand in memory, refuses duplicate keys and text that is no JSON,
// and names the place ("/gpus/3/id").
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/json_value.h"
#include "tutti/error.h"

namespace tutti::plan {

inline constexpr std::size_t kMaxJsonDepth = 12;
inline constexpr std::size_t kMaxJsonValues = 1 << 22;  // at a time; an eighth of a kilobyte each at most

// Throws InvalidArgument "<path>: <what>".
[[noreturn]] void throw_at(const std::string& path, const std::string& what);

// A key as it stands in a path.
std::string escape(std::string_view key);

// `read()`, whose errors begin with `subject` in place of "plan: ".
template <class Read>
auto naming(std::string_view subject, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    constexpr std::string_view kPlan = "plan: ";
    std::string_view what = error.what();
    if (what.starts_with(kPlan)) what.remove_prefix(kPlan.size());
    throw Error(error.kind(), std::string(subject).append(what));
  }
}

// Arrays whose elements are handed over: {"gpus"} is that of the top-level object, {"gpus", "threadblocks"} those of
// the elements of that one. `take` gets the element with its index, after those of the elements that it lies in.
struct Streamed {
  std::vector<std::string_view> keys;
  std::function<void(const std::vector<std::size_t>& indices, Json&& element)> take;
};

// The top-level object without what was handed over: such arrays stay as empty ones, so a caller sees whether they were
// there.
Json read_document(std::string_view text, const std::vector<Streamed>& streamed,
                   std::size_t most_values = kMaxJsonValues);

// A value and the way to it, for error messages. Refers to the value and to the cursor it came from.
class Cursor {
 public:
  explicit Cursor(const Json& value, std::string root = "") : value_(&value), root_(std::move(root)) {}

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
