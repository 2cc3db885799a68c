// The source of a compiled plan, read back: what each thread block does, a line a record, turn by turn of its loops, in
// words that a test can compare.
#pragma once

#include <algorithm>
#include <cstdint>
#include <regex>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace tutti::cuda::test {

using Lines = std::vector<std::string>;

template <class... Parts>
std::string joined(const Parts&... parts) {
  std::ostringstream out;
  ((out << parts << ' '), ...);
  return out.str();
}

// What the names of an expression stand for.
struct Names {
  std::uint64_t turn = 0;
  std::uint64_t n = 0;
  std::vector<std::uint64_t> apart;
};

// "18432 + 16 * apart[2] - 64 * turn"
inline std::uint64_t value_of(const std::string& text, const Names& names) {
  std::istringstream in(text);
  std::uint64_t sum = 0, product = 1;
  bool minus = false;
  const auto end_term = [&] {
    sum += minus ? -product : product;
    product = 1;
  };
  for (std::string word; in >> word;) {
    if (word == "+" || word == "-") {
      end_term();
      minus = word == "-";
    } else if (word == "turn") {
      product *= names.turn;
    } else if (word == "n") {
      product *= names.n;
    } else if (word.starts_with("apart[")) {
      product *= names.apart.at(std::stoull(word.substr(6)));
    } else if (word != "*") {
      product *= std::stoull(word);
    }
  }
  end_term();
  return sum;
}

inline std::vector<std::string> arguments(const std::string& text) {
  std::vector<std::string> list;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find(", ", at), text.size());
    list.push_back(text.substr(at, end - at));
    at = end + 2;
  }
  return list;
}

// A place or a word with all that it leaves out.
inline std::string read_operand(const std::string& name, const std::string& text, const Names& names) {
  std::string line = joined(name);
  std::vector<std::string> list = arguments(text);
  if (name == "memory" || name.starts_with("peer_")) list.resize(3, "0");
  if (name == "input" || name == "output") list.resize(2, "0");
  for (const std::string& one : list) line += joined(value_of(one, names));
  return line;
}

inline std::string read_statement(const std::string& text, const Names& names) {
  static const std::regex kHead(R"(^(\w+)\((?:bytes<(\d+)>)?)");
  static const std::regex kOperand(
      R"((?:packets_of_rank\(([^(),]+), )?(memory|peer_input|peer_output|input|output|word_of_rank|own_word)\(([^()]*)\))");
  std::smatch head;
  if (!std::regex_search(text, head, kHead)) return "unreadable: " + text;
  std::string name = head[1];
  if (name.ends_with("_early")) name.resize(name.size() - 6);
  std::string line = name + (head[2].matched ? joined("", head[2].str()) : "");
  for (auto at = std::sregex_iterator(text.begin(), text.end(), kOperand); at != std::sregex_iterator(); ++at) {
    line += "|" + ((*at)[1].matched ? joined("packets", value_of((*at)[1], names)) : "") +
            read_operand((*at)[2], (*at)[3], names);
  }
  return line;
}

// One line of a function, turn by turn as it stands in a loop.
inline void read_line(const std::string& text, const Names& names, Lines& lines) {
  if (text == "if (join_failed()) return false;") return lines.push_back("join");
  if (text == "fence();") return lines.push_back("fence");
  if (text.starts_with("write_counts(")) {
    const auto list = arguments(text.substr(13, text.size() - 15));
    for (std::uint64_t i = 0; i < value_of(list[1], names); ++i) {
      lines.push_back(joined("used", value_of(list[0], names) + i, value_of(list[2], names) + 8 * i, list[3]));
    }
    return;
  }
  lines.push_back(read_statement(text, names));
}

// The lines between two places, whole statements, without comments and indentation.
inline Lines lines_between(const std::string& text, const std::string& from, const std::string& to) {
  Lines lines;
  const std::size_t begin = text.find(from) + from.size();
  std::istringstream in(text.substr(begin, text.find(to, begin) - begin));
  for (std::string line, whole; std::getline(in, line);) {
    line.erase(0, std::min(line.find_first_not_of(' '), line.size()));
    if (line.empty() || line.starts_with("//") || line == "TUTTI_ROLLED") continue;
    if (line.starts_with("case ") || line.starts_with("const ")) continue;
    whole += whole.empty() ? line : " " + line;
    if (line.ends_with(",")) continue;
    lines.push_back(std::move(whole));
    whole.clear();
  }
  return lines;
}

// The function of a block, by the first of those that share it.
inline std::size_t function_of(const std::string& text, std::size_t block) {
  const std::size_t run = text.find("bool run(");
  const std::size_t at = text.find("ok = block_", text.find("case " + std::to_string(block) + ":", run));
  return std::stoull(text.substr(at + 11));
}

// As what stands from `at` on, up to the end of the function or case, names them for this block.
inline Names names_of(const std::string& text, std::size_t block, std::size_t at) {
  const std::size_t end = std::min(text.find("return true;", at), text.find("break;", at));
  Names names;
  const std::size_t behind = text.find("n = behind(", at);
  if (behind < end) names.n = block - std::stoull(text.substr(behind + 11));
  const std::size_t apart = text.find("apart = kApart", at);
  if (apart > end) return names;
  const std::string table = text.substr(apart + 8, text.find('[', apart) - apart - 8);
  std::size_t row = text.find("{\n", text.find("std::uint64_t " + table + "[")) + 2;
  for (std::uint64_t i = 0; i < names.n; ++i) row = text.find('\n', row) + 1;
  row = text.find('{', row) + 1;
  for (const std::string& one : arguments(text.substr(row, text.find('}', row) - row))) {
    names.apart.push_back(std::stoull(one));
  }
  return names;
}

inline Lines read_block(const std::string& text, std::size_t block) {
  const std::string number = std::to_string(function_of(text, block));
  Names names = names_of(text, block, text.find("bool block_" + number + "() {"));
  const Lines in = lines_between(text, "bool block_" + number + "() {\n", "    return true;\n");
  static const std::regex kLoop(R"(^for \(std::uint64_t turn = 0; turn < (\d+); \+\+turn\) \{$)");
  Lines out;
  for (std::size_t i = 0; i < in.size(); ++i) {
    std::smatch loop;
    if (!std::regex_match(in[i], loop, kLoop)) {
      read_line(in[i], names, out);
      continue;
    }
    const auto end =
        static_cast<std::size_t>(std::find(in.begin() + static_cast<std::ptrdiff_t>(i), in.end(), "}") - in.begin());
    for (std::uint64_t turn = 0; turn < std::stoull(loop[1]); ++turn) {
      for (std::size_t k = i + 1; k < end; ++k) {
        if (in[k].find("_early(") != std::string::npos) out.push_back("loaded early, at every turn");
        names.turn = turn;
        read_line(in[k], names, out);
      }
    }
    i = end;
  }
  return out;
}

// What the block does before its call: which counts it reads, and what it loads.
struct Early {
  Lines counts;
  std::string load;
};
inline Early read_prepare(const std::string& text, std::size_t block) {
  Early early;
  const std::string all = text.substr(0, text.find("bool run("));
  const std::string at = "case " + std::to_string(block) + ":";
  if (all.find(at) == std::string::npos) return early;
  const Names names = names_of(text, block, text.find(at));
  for (const std::string& line : lines_between(all, at, "break;\n")) {
    if (line.starts_with("load_early(") || line.starts_with("load_pieces_early(")) {
      early.load = read_statement(line, names);
    }
    if (!line.starts_with("read_counts(")) continue;
    const auto list = arguments(line.substr(12, line.size() - 14));
    for (std::uint64_t i = 0; i < value_of(list[1], names); ++i) {
      early.counts.push_back(joined("count", value_of(list[0], names) + i, value_of(list[2], names) + 8 * i));
    }
  }
  return early;
}

}  // namespace tutti::cuda::test
