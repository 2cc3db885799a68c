#include "executor/cuda/alike.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace tutti::executor {
namespace {

constexpr char kNumber = '\x01', kOffset = '\x02', kEnd = '\x03';
constexpr std::uint64_t kAlignment = 16;  // of tables, where their numbers have it: known to the compiler then

// A text as it is without its numbers, and they.
struct Parts {
  std::string shape;
  std::string statements;  // the shape without lines of comment
  std::vector<std::uint64_t> numbers;
};

bool comment_begins(const std::string& text, std::size_t line) {
  const std::size_t at = text.find_first_not_of(' ', line);
  return at != std::string::npos && text.compare(at, 2, "//") == 0;
}

Parts apart(const std::string& text) {
  Parts parts;
  bool comment = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (i == 0 || text[i - 1] == '\n') comment = comment_begins(text, i);
    parts.shape += text[i];
    if (!comment) parts.statements += text[i];
    if (text[i] != kNumber && text[i] != kOffset) continue;
    const std::size_t end = text.find(kEnd, i);
    parts.numbers.push_back(std::stoull(text.substr(i + 1, end - i - 1)));
    i = end;
  }
  return parts;
}

// What a number is in each block.
using Column = std::vector<std::uint64_t>;

class Merged {
 public:
  Merged(std::vector<std::size_t> blocks, const std::vector<Parts>& parts) : blocks_(std::move(blocks)), parts_(parts) {
    std::size_t number = 0;
    for (const char c : parts_[blocks_.front()].shape) {
      if (c != kNumber && c != kOffset) {
        text_ += c;
        continue;
      }
      const std::string written = expression(number++);
      if (c == kNumber) text_ += written;
      if (c == kOffset && written != "0") text_ += ", " + written;
    }
  }

  std::size_t entries() const { return columns_.size() * span(); }
  Alike made() && {
    std::vector<std::vector<std::uint64_t>> rows;
    if (!columns_.empty()) rows.assign(span(), std::vector<std::uint64_t>(columns_.size()));
    for (const auto& [column, index] : columns_) {
      for (std::size_t i = 0; i < blocks_.size(); ++i) {
        rows[blocks_[i] - blocks_.front()][index] = column[i] / unit(column);
      }
    }
    return {std::move(blocks_), std::move(text_), std::move(rows)};
  }

 private:
  std::size_t span() const { return blocks_.back() - blocks_.front() + 1; }
  static std::uint64_t unit(const Column& column) {
    const bool aligned = std::all_of(column.begin(), column.end(), [](std::uint64_t v) { return v % kAlignment == 0; });
    return aligned ? kAlignment : 1;
  }

  std::string expression(std::size_t number) {
    Column column;
    for (const std::size_t block : blocks_) column.push_back(parts_[block].numbers[number]);
    if (const auto text = multiple(column)) return *text;
    const std::uint64_t least = *std::min_element(column.begin(), column.end());
    for (std::uint64_t& v : column) v -= least;
    const std::size_t index = columns_.try_emplace(column, columns_.size()).first->second;
    const std::string entry = "apart[" + std::to_string(index) + "]";
    return sum(least, " + ", unit(column) == 1 ? entry : std::to_string(unit(column)) + " * " + entry);
  }
  static std::string sum(std::uint64_t least, const std::string& sign, const std::string& more) {
    return least == 0 && sign == " + " ? more : std::to_string(least) + sign + more;
  }
  // Of a number that is the same everywhere, or grows or shrinks by the same from block to block.
  std::optional<std::string> multiple(const Column& column) const {
    if (column.size() == 1) return std::to_string(column[0]);
    const auto behind = [&](std::size_t i) { return static_cast<std::int64_t>(blocks_[i] - blocks_[0]); };
    const auto grown = [&](std::size_t i) { return static_cast<std::int64_t>(column[i] - column[0]); };
    const std::int64_t step = grown(1) / behind(1);
    for (std::size_t i = 1; i < column.size(); ++i) {
      if (grown(i) != step * behind(i)) return std::nullopt;
    }
    if (step == 0) return std::to_string(column[0]);
    return sum(column[0], step < 0 ? " - " : " + ", std::to_string(step < 0 ? -step : step) + " * n");
  }

  std::vector<std::size_t> blocks_;
  const std::vector<Parts>& parts_;
  std::map<Column, std::size_t> columns_;  // of the table, each less its least
  std::string text_;
};

}  // namespace

std::string varying(std::uint64_t value) { return kNumber + std::to_string(value) + kEnd; }
std::string varying_offset(std::uint64_t value) { return kOffset + std::to_string(value) + kEnd; }

std::vector<Alike> merge_alike(std::span<const std::string> texts, std::size_t most_entries) {
  std::vector<Parts> parts;
  std::map<std::string, std::size_t> group_of;
  std::vector<std::vector<std::size_t>> groups;
  for (std::size_t block = 0; block < texts.size(); ++block) {
    parts.push_back(apart(texts[block]));
    const auto [at, is_new] = group_of.try_emplace(parts.back().statements, groups.size());
    if (is_new) groups.emplace_back();
    groups[at->second].push_back(block);
  }
  std::vector<Alike> all;
  for (const std::vector<std::size_t>& blocks : groups) {
    Merged merged(blocks, parts);
    if (merged.entries() <= most_entries) {
      most_entries -= merged.entries();
      all.push_back(std::move(merged).made());
      continue;
    }
    for (const std::size_t block : blocks) all.push_back(Merged({block}, parts).made());
  }
  std::sort(all.begin(), all.end(), [](const Alike& a, const Alike& b) { return a.blocks[0] < b.blocks[0]; });
  return all;
}

}  // namespace tutti::executor
