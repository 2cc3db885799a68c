// What control groups (version 1 or 2) leave to this process: processor time and memory.
//
// Thread rule: pure functions of the files that `read` returns.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace tutti {

// The contents of a file, or nothing if it cannot be read.
using FileReader = std::function<std::optional<std::string>(const std::string& path)>;

// "50000 100000" -> 0.5; "max 100000" and anything malformed -> nothing.
std::optional<double> parse_cpu_max(std::string_view text);

// Version 1's two files; a quota of -1 means none.
std::optional<double> parse_cfs_quota(std::string_view quota_us, std::string_view period_us);

// The smallest quota in cores of this process's group and of all groups above it; nothing if there is none.
std::optional<double> cgroup_cpu_quota(const FileReader& read);

// "1073741824" -> that; "max" and anything malformed -> nothing.
std::optional<std::uint64_t> parse_memory_limit(std::string_view text);

// The smallest limit in bytes, likewise. Version 1 says a number beyond any memory for none.
std::optional<std::uint64_t> cgroup_memory_limit(const FileReader& read);

}  // namespace tutti
