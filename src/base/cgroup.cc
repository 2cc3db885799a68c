// Finds this process's control group in /proc/self/cgroup and the limits on the way up to the root.
#include "base/cgroup.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/parse.h"

namespace tutti {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  return parse_number(trim(text), value) ? std::optional(value) : std::nullopt;
}

std::optional<double> quota_of(std::optional<std::int64_t> quota_us, std::optional<std::int64_t> period_us) {
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

template <class Value>
void keep_smaller(std::optional<Value>& smallest, std::optional<Value> limit) {
  if (limit && (!smallest || *limit < *smallest)) smallest = limit;
}

// "/a/b" -> {"/a/b", "/a", ""}. A container may see its path from outside; then only the last one exists.
std::vector<std::string> with_ancestors(std::string_view path) {
  std::vector<std::string> paths;
  while (!path.empty() && path != "/") {
    paths.emplace_back(path);
    const std::size_t slash = path.rfind('/');
    path = slash == std::string_view::npos ? std::string_view{} : path.substr(0, slash);
  }
  paths.emplace_back();
  return paths;
}

bool lists_controller(std::string_view controllers, std::string_view name) {
  while (!controllers.empty()) {
    const std::size_t comma = controllers.find(',');
    if (controllers.substr(0, comma) == name) return true;
    if (comma == std::string_view::npos) return false;
    controllers.remove_prefix(comma + 1);
  }
  return false;
}

// Calls `look_2` or `look_1` with the folder of this process's group, and of each above it, where that version holds
// the controller; `mounts_1` are where version 1 may have it.
template <class Look2, class Look1>
void for_each_group(const FileReader& read, std::string_view controller, std::initializer_list<const char*> mounts_1,
                    const Look2& look_2, const Look1& look_1) {
  const std::optional<std::string> groups = read("/proc/self/cgroup");
  if (!groups) return;
  std::string_view rest = *groups;
  while (!rest.empty()) {
    const std::size_t newline = rest.find('\n');
    const std::string_view line = rest.substr(0, newline);
    rest.remove_prefix(newline == std::string_view::npos ? rest.size() : newline + 1);
    // hierarchy:controllers:path, where the path may hold colons.
    const std::size_t first = line.find(':');
    const std::size_t second = first == std::string_view::npos ? first : line.find(':', first + 1);
    if (second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const std::vector<std::string> paths = with_ancestors(trim(line.substr(second + 1)));
    if (controllers.empty()) {
      for (const std::string mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
        for (const std::string& path : paths) look_2(mount + path);
      }
    } else if (lists_controller(controllers, controller)) {
      for (const std::string mount : mounts_1) {
        for (const std::string& path : paths) look_1(mount + path);
      }
    }
  }
}

}  // namespace

std::optional<double> parse_cpu_max(std::string_view text) {
  text = trim(text);
  const std::size_t blank = text.find(' ');
  if (blank == std::string_view::npos) return std::nullopt;
  return quota_of(parse_integer(text.substr(0, blank)), parse_integer(text.substr(blank + 1)));
}

std::optional<double> parse_cfs_quota(std::string_view quota_us, std::string_view period_us) {
  return quota_of(parse_integer(quota_us), parse_integer(period_us));
}

std::optional<double> cgroup_cpu_quota(const FileReader& read) {
  std::optional<double> smallest;
  for_each_group(
      read, "cpu", {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"},
      [&](const std::string& group) {
        if (const auto text = read(group + "/cpu.max")) keep_smaller(smallest, parse_cpu_max(*text));
      },
      [&](const std::string& group) {
        const auto quota = read(group + "/cpu.cfs_quota_us");
        const auto period = read(group + "/cpu.cfs_period_us");
        if (quota && period) keep_smaller(smallest, parse_cfs_quota(*quota, *period));
      });
  return smallest;
}

std::optional<std::uint64_t> parse_memory_limit(std::string_view text) {
  const std::optional<std::int64_t> bytes = parse_integer(text);
  if (!bytes || *bytes < 0) return std::nullopt;
  return static_cast<std::uint64_t>(*bytes);
}

std::optional<std::uint64_t> cgroup_memory_limit(const FileReader& read) {
  std::optional<std::uint64_t> smallest;
  const auto keep = [&](const std::string& file) {
    if (const auto text = read(file)) keep_smaller(smallest, parse_memory_limit(*text));
  };
  for_each_group(
      read, "memory", {"/sys/fs/cgroup/memory"},
      [&](const std::string& group) {
        keep(group + "/memory.max");
        keep(group + "/memory.high");  // beyond it the group is slowed down
      },
      [&](const std::string& group) { keep(group + "/memory.limit_in_bytes"); });
  return smallest;
}

}  // namespace tutti
