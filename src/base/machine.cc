#include "base/machine.h"

#include <sys/utsname.h>
#include <unistd.h>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <optional>
#include <string_view>

#include "base/cgroup.h"
#include "base/process.h"
#include "base/secret.h"
#include "base/whole_file.h"

namespace tutti {
namespace {

// The value of the first line "key : value".
std::string value_of(std::string_view text, std::string_view key) {
  for (std::size_t at = text.find(key); at != std::string_view::npos; at = text.find(key, at + 1)) {
    if (at != 0 && text[at - 1] != '\n') continue;
    const std::string_view line = text.substr(at, text.find('\n', at) - at);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string_view::npos) return std::string(line.substr(begin));
  }
  return {};
}

std::string cpu_model() {
#if defined(__APPLE__)
  char brand[256] = "";
  std::size_t bytes = sizeof brand;
  if (::sysctlbyname("machdep.cpu.brand_string", brand, &bytes, nullptr, 0) == 0) return brand;
#endif
  const std::string text = system_file("/proc/cpuinfo").value_or("");
  if (std::string model = value_of(text, "model name"); !model.empty()) return model;
  utsname names{};
  std::string model = ::uname(&names) == 0 ? names.machine : "unknown";
  // Arm processors are told by numbers.
  for (const char* key : {"CPU implementer", "CPU part", "CPU variant"}) {
    if (const std::string value = value_of(text, key); !value.empty()) model += " " + value;
  }
  return model;
}

// Not usable_cores(): a launcher may have bound this rank to one of them.
int machine_cores() {
  const long online = std::max(1L, ::sysconf(_SC_NPROCESSORS_ONLN));
  const std::optional<double> quota = cgroup_cpu_quota(system_file);
  return quota ? std::max(1, static_cast<int>(std::min(static_cast<double>(online), std::ceil(*quota))))
               : static_cast<int>(online);
}

}  // namespace

Machine this_machine() {
  static const Machine machine{cpu_model(), machine_cores(), last_cache_bytes()};  // asked once
  return machine;
}

std::string short_id(const Machine& machine) {
  const std::string text =
      machine.cpu + "\n" + std::to_string(machine.cores) + "\n" + std::to_string(machine.last_cache_bytes);
  return hexadecimal(sha256(text)).substr(0, 12);
}

std::string describe(const Machine& machine) {
  return machine.cpu + ", " + std::to_string(machine.cores) + (machine.cores == 1 ? " core, " : " cores, ") +
         std::to_string(machine.last_cache_bytes >> 10) + " KB of cache";
}

}  // namespace tutti
