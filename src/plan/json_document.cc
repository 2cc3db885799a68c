// Builds JSON values from the parser's events, with the path of each at hand.
#include "plan/json_document.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

namespace tutti::plan {

std::string escape(std::string_view key) {
  std::string out;
  for (const char c : key.substr(0, 60)) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out += static_cast<unsigned char>(c) < 0x20 ? '?' : c;
    }
  }
  return out;
}

namespace {

// Events of nlohmann's parser. Its own builder neither knows the path nor lets go of what it has built, and its values
// take memory to be destroyed.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  Builder(const std::vector<Streamed>& streamed, std::size_t most) : streamed_(streamed), most_(most) {}

  Json take_root() { return std::move(root_); }

  bool null() override { return put(Json()); }
  bool boolean(bool value) override { return put(Json(value)); }
  bool number_integer(number_integer_t value) override { return put(Json(value)); }
  bool number_unsigned(number_unsigned_t value) override { return put(Json(value)); }
  bool number_float(number_float_t value, const string_t&) override { return put(Json(value)); }
  bool string(string_t& value) override { return put(Json(std::move(value))); }
  bool binary(binary_t&) override { return false; }
  bool start_object(std::size_t) override { return open(Json(Json::Object())); }
  bool start_array(std::size_t) override { return open(Json(Json::Array())); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& value) override {
    Level& level = levels_.back();
    level.key = std::move(value);
    if (level.value.find(level.key) != nullptr) throw_at(path(), "the key is there twice");
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    (void)error;
    throw_at(path(), "not JSON at byte " + std::to_string(position));
  }

 private:
  struct Level {
    Json value;
    std::size_t before = 0;  // values that stood in memory when it began
    std::string key;         // of the value that comes next, in an object
    std::size_t index = 0;   // … in an array
  };

  std::string path() const {
    std::string out;
    for (const Level& level : levels_) {
      out += '/';
      out += level.value.as<Json::Object>() != nullptr ? escape(level.key) : std::to_string(level.index);
    }
    return out;
  }

  bool open(Json container) {
    if (levels_.size() >= kMaxJsonDepth) throw_at(path(), "nested too deeply");
    levels_.push_back({std::move(container), values_, {}, 0});
    return true;
  }

  bool close() {
    Json value = std::move(levels_.back().value);
    levels_.pop_back();
    return put(std::move(value));
  }

  // The list whose elements are handed over, if this level is one.
  const Streamed* streamed_here() {
    for (const Streamed& list : streamed_) {
      if (levels_.size() != 2 * list.keys.size()) continue;
      bool same = true;
      for (std::size_t i = 0; i < list.keys.size() && same; ++i) same = levels_[2 * i].key == list.keys[i];
      if (same) return &list;
    }
    return nullptr;
  }

  bool put(Json value) {
    if (++values_ > most_) throw_at(path(), "too many values for one part of a plan");
    if (levels_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Level& level = levels_.back();
    if (auto* const object = level.value.as<Json::Object>()) {
      object->insert_or_assign(level.key, std::move(value));
      return true;
    }
    if (const Streamed* list = streamed_here()) {
      std::vector<std::size_t> indices;
      for (std::size_t i = 1; i < levels_.size(); i += 2) indices.push_back(levels_[i].index);
      values_ = level.before;
      list->take(indices, std::move(value));
    } else {
      level.value.as<Json::Array>()->push_back(std::move(value));
    }
    ++level.index;
    return true;
  }

  const std::vector<Streamed>& streamed_;
  const std::size_t most_;
  std::vector<Level> levels_;
  std::size_t values_ = 0;  // that stand in memory
  Json root_;
};

}  // namespace

void throw_at(const std::string& path, const std::string& what) {
  throw Error(ErrorKind::kInvalidArgument, "plan: " + (path.empty() ? std::string("/") : path) + ": " + what);
}

Json read_document(std::string_view text, const std::vector<Streamed>& streamed, std::size_t most_values) {
  // The parser takes it for the end of the text.
  if (const std::size_t nul = text.find('\0'); nul != text.npos) {
    throw_at("", "not JSON at byte " + std::to_string(nul + 1));
  }
  Builder builder(streamed, most_values);
  nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  Json root = builder.take_root();
  if (root.as<Json::Object>() == nullptr) throw_at("", "a JSON object is expected");
  return root;
}

std::string Cursor::path() const {
  if (parent_ == nullptr) return root_;
  return parent_->path() + "/" + (key_.empty() ? std::to_string(index_) : escape(key_));
}

bool Cursor::has(std::string_view key) const { return value_->find(key) != nullptr; }

Cursor Cursor::at(std::string_view key) const {
  const Json* const found = value_->find(key);
  if (found == nullptr) fail("\"" + std::string(key) + "\" is missing");
  return {*found, this, key, 0};
}

Cursor Cursor::at(std::size_t index) const { return {value_->as<Json::Array>()->at(index), this, {}, index}; }

void Cursor::allow_only(std::initializer_list<std::string_view> known) const {
  expect_object();
  for (const auto& [key, value] : *value_->as<Json::Object>()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw_at(path() + "/" + escape(key), "unknown key");
    }
  }
}

void Cursor::expect_object() const {
  if (value_->as<Json::Object>() == nullptr) fail("an object is expected");
}

std::size_t Cursor::array_size(std::size_t most) const {
  const auto* const array = value_->as<Json::Array>();
  if (array == nullptr) fail("an array is expected");
  if (array->size() > most) {
    fail(std::to_string(array->size()) + " elements; at most " + std::to_string(most) + " are allowed");
  }
  return array->size();
}

std::int64_t Cursor::integer(std::int64_t least, std::int64_t most) const {
  const auto refuse = [&](const auto number) {
    fail(std::to_string(number) + " is outside " + std::to_string(least) + " to " + std::to_string(most));
  };
  if (const auto* const number = value_->as<std::uint64_t>()) {
    if (std::cmp_less(*number, least) || std::cmp_greater(*number, most)) refuse(*number);
    return static_cast<std::int64_t>(*number);
  }
  const auto* const number = value_->as<std::int64_t>();
  if (number == nullptr) fail("an integer is expected");
  if (*number < least || *number > most) refuse(*number);
  return *number;
}

std::uint64_t Cursor::unsigned_integer() const {
  const auto* const number = value_->as<std::uint64_t>();
  if (number == nullptr) fail("an integer of at least 0 is expected");
  return *number;
}

bool Cursor::boolean() const {
  const bool* const truth = value_->as<bool>();
  if (truth == nullptr) fail("true or false is expected");
  return *truth;
}

std::string Cursor::text(std::size_t longest) const {
  const auto* const held = value_->as<std::string>();
  if (held == nullptr) fail("a string is expected");
  if (held->size() > longest) fail("longer than " + std::to_string(longest) + " bytes");
  return *held;
}

}  // namespace tutti::plan
