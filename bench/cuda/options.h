// The command lines of the benchmarks: options of one value each, `--key value`.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <variant>
#include <vector>

namespace tutti::bench {

inline std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, ',');) parts.push_back(part);
  return parts;
}

// "4,64K,16M,1G"
inline std::vector<std::size_t> numbers(const std::string& text) {
  std::vector<std::size_t> result;
  for (const std::string& part : split(text)) {
    char* unit = nullptr;
    const std::size_t value = std::strtoull(part.c_str(), &unit, 10);
    result.push_back(value << (*unit == 'K' ? 10 : *unit == 'M' ? 20 : *unit == 'G' ? 30 : 0));
  }
  return result;
}

// Where a value goes; lists are separated by commas.
using Option = std::variant<int*, double*, std::string*, std::vector<std::string>*, std::vector<std::size_t>*>;

inline void read_option(const std::string& value, int* to) { *to = std::atoi(value.c_str()); }
inline void read_option(const std::string& value, double* to) { *to = std::atof(value.c_str()); }
inline void read_option(const std::string& value, std::string* to) { *to = value; }
inline void read_option(const std::string& value, std::vector<std::string>* to) { *to = split(value); }
inline void read_option(const std::string& value, std::vector<std::size_t>* to) { *to = numbers(value); }

// What is not given stays as it is. Exits with the list of the options if one is unknown or has no value.
inline void read_options(int argc, char** argv, const std::map<std::string, Option>& options) {
  for (int i = 1; i < argc; i += 2) {
    const auto found = options.find(argv[i]);
    if (found == options.end() || i + 1 == argc) {
      std::fprintf(stderr, "%s: %s; the options, each with a value:", argv[i],
                   found == options.end() ? "no such option" : "no value");
      for (const auto& [key, to] : options) std::fprintf(stderr, " %s", key.c_str());
      std::fprintf(stderr, "\n");
      std::exit(2);
    }
    std::visit([&](auto* to) { read_option(argv[i + 1], to); }, found->second);
  }
}

}  // namespace tutti::bench
