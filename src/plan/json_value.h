// JSON that stands in memory. Its destructor takes none, unlike that of nlohmann's values, so whoever runs out of
// memory while one is read gets std::bad_alloc. The depth of what is destroyed is the reader's to bound.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace tutti::plan {

class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::map<std::string, Json, std::less<>>;
  // Null, truth, integers that are negative and that are not, other numbers, text.
  using Value = std::variant<std::monostate, bool, std::int64_t, std::uint64_t, double, std::string, Array, Object>;

  Json() = default;
  explicit Json(Value value) : value_(std::move(value)) {}

  // Null if it is something else.
  template <class Kind>
  Kind* as() noexcept {
    return std::get_if<Kind>(&value_);
  }
  template <class Kind>
  const Kind* as() const noexcept {
    return std::get_if<Kind>(&value_);
  }
  // Null if there is none, or this is no object.
  const Json* find(std::string_view key) const noexcept {
    const auto* const object = as<Object>();
    if (object == nullptr) return nullptr;
    const auto found = object->find(key);
    return found == object->end() ? nullptr : &found->second;
  }

 private:
  Value value_;
};

}  // namespace tutti::plan
