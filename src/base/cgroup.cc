// Finds this process's control group in /proc/self/cgroup and the quotas on the way up to the root.
#include "base/cgroup.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <vector>

namespace tutti {
namespace {

std::string_view trim(std::string_view text) {
  constexpr std::string_view kBlank = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kBlank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlank) - first + 1);
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  text = trim(text);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> quota_of(std::optional<std::int64_t> quota_us, std::optional<std::int64_t> period_us) {
  if (!quota_us || !period_us || *quota_us <= 0 || *period_us <= 0) return std::nullopt;
  return static_cast<double>(*quota_us) / static_cast<double>(*period_us);
}

void keep_smaller(std::optional<double>& smallest, std::optional<double> quota) {
  if (quota && (!smallest || *quota < *smallest)) smallest = quota;
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

void look_in_version_2(const FileReader& read, std::string_view path, std::optional<double>& smallest) {
  for (const std::string mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
    for (const std::string& group : with_ancestors(path)) {
      if (const auto text = read(mount + group + "/cpu.max")) keep_smaller(smallest, parse_cpu_max(*text));
    }
  }
}

void look_in_version_1(const FileReader& read, std::string_view path, std::optional<double>& smallest) {
  for (const std::string mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    for (const std::string& group : with_ancestors(path)) {
      const auto quota = read(mount + group + "/cpu.cfs_quota_us");
      const auto period = read(mount + group + "/cpu.cfs_period_us");
      if (quota && period) keep_smaller(smallest, parse_cfs_quota(*quota, *period));
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
  const std::optional<std::string> groups = read("/proc/self/cgroup");
  if (!groups) return std::nullopt;
  std::optional<double> smallest;
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
    const std::string_view path = trim(line.substr(second + 1));
    if (controllers.empty()) {
      look_in_version_2(read, path, smallest);
    } else if (lists_controller(controllers, "cpu")) {
      look_in_version_1(read, path, smallest);
    }
  }
  return smallest;
}

}  // namespace tutti
