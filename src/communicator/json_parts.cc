#include "communicator/json_parts.h"

#include <algorithm>
#include <string>

#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::string_view kSpace = " \t\r\n";

class Parts {
 public:
  explicit Parts(std::string_view text) : text_(text) {}

  void expect(char wanted) {
    if (!take(wanted)) fail();
  }
  bool take(char wanted) {
    at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size());
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }
  std::string_view string() {
    expect('"');
    const std::size_t start = at_;
    skip_string();
    return text_.substr(start, at_ - start - 1);
  }
  std::string_view value() {
    at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size());
    const std::size_t start = at_;
    std::size_t open = 0;
    for (; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (open == 0 && (c == ',' || c == '}' || c == ']' || kSpace.find(c) != std::string_view::npos)) break;
      if (c == '{' || c == '[') ++open;
      if (c == '}' || c == ']') --open;
      if (c != '"') continue;
      ++at_;
      skip_string();
      --at_;
    }
    if (start == at_ || open != 0) fail();
    return text_.substr(start, at_ - start);
  }
  void end() {
    if (text_.find_first_not_of(kSpace, at_) != std::string_view::npos) fail();
  }

 private:
  // From behind the first quote to behind the last one.
  void skip_string() {
    while (at_ < text_.size() && text_[at_] != '"') at_ += text_[at_] == '\\' ? 2 : 1;
    if (at_ >= text_.size()) fail();
    ++at_;
  }
  [[noreturn]] void fail() const {
    throw_error(ErrorKind::kInternal, "a flight record of a device is no JSON at byte " + std::to_string(at_));
  }

  const std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<std::pair<std::string_view, std::string_view>> members_of(std::string_view object) {
  std::vector<std::pair<std::string_view, std::string_view>> members;
  Parts parts(object);
  parts.expect('{');
  if (!parts.take('}')) {
    do {
      const std::string_view name = parts.string();
      parts.expect(':');
      members.emplace_back(name, parts.value());
    } while (parts.take(','));
    parts.expect('}');
  }
  parts.end();
  return members;
}

std::vector<std::string_view> elements_of(std::string_view array) {
  std::vector<std::string_view> elements;
  Parts parts(array);
  parts.expect('[');
  if (!parts.take(']')) {
    do elements.push_back(parts.value());
    while (parts.take(','));
    parts.expect(']');
  }
  parts.end();
  return elements;
}

std::string_view unquoted(std::string_view string) {
  Parts parts(string);
  const std::string_view text = parts.string();
  parts.end();
  return text;
}

}  // namespace tutti
