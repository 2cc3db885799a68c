// Cores, process descriptors and the name of the machine, from Linux's system calls; macOS has fewer of them.
#include "base/process.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cmath>
#include <fstream>
#include <memory>
#include <optional>
#include <sstream>
#include <string_view>
#include <thread>
#include <vector>

#if defined(__linux__)
#include <sched.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include "base/cgroup.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/secret.h"
#include "base/whole_file.h"

namespace tutti {
namespace {

int online_cores() noexcept { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

#if defined(__linux__)

using CoreMask = std::vector<unsigned char>;

// The cores that a process may run on (0: this one); empty when the system does not say.
CoreMask affinity_of(pid_t process) {
  // The kernel refuses a mask that is smaller than its own; machines with more than 1024 cores exist.
  for (int cores = 1024; cores <= (1 << 20); cores *= 2) {
    CoreMask mask(CPU_ALLOC_SIZE(static_cast<std::size_t>(cores)));
    if (::sched_getaffinity(process, mask.size(), reinterpret_cast<cpu_set_t*>(mask.data())) == 0) return mask;
    if (errno != EINVAL) break;
  }
  return {};
}

int affinity_cores(std::span<const pid_t> others) {
  CoreMask all = affinity_of(0);
  if (all.empty()) return online_cores();
  for (const pid_t process : others) {
    if (process <= 0) continue;
    const CoreMask mask = affinity_of(process);
    if (mask.size() > all.size()) all.resize(mask.size());
    for (std::size_t i = 0; i < mask.size(); ++i) all[i] |= mask[i];
  }
  int cores = 0;
  for (const unsigned char byte : all) cores += std::popcount(byte);
  return std::max(1, cores);
}

// What this process's control group allows may change while it runs, but not from one rank or group to the next, and
// the kernel answers under a lock that all processes share: asked again after a second.
template <class Limit>
class AskedEachSecond {
 public:
  explicit constexpr AskedEachSecond(std::optional<Limit> (*ask)(const FileReader&)) : ask_(ask) {}

  std::optional<Limit> get() {
    const std::int64_t now = now_ns();
    // acquire: with the time comes the limit that was stored before it, or a later one.
    if (now >= until_.load(std::memory_order_acquire)) {
      limit_.store(ask_(system_file).value_or(Limit{}), std::memory_order_relaxed);  // ordered by the next store
      until_.store(now + 1'000'000'000, std::memory_order_release);                  // the pair of the load above
    }
    const Limit limit = limit_.load(std::memory_order_relaxed);  // each that may be found here was true a second ago
    return limit == Limit{} ? std::nullopt : std::optional(limit);
  }

 private:
  std::optional<Limit> (*const ask_)(const FileReader&);
  std::atomic<std::int64_t> until_{0};
  std::atomic<Limit> limit_{};  // 0: none
};

constinit AskedEachSecond<double> cpu_quota(cgroup_cpu_quota);
constinit AskedEachSecond<std::uint64_t> memory_limit(cgroup_memory_limit);

#endif

}  // namespace

int usable_cores() noexcept { return usable_cores({}); }

int usable_cores([[maybe_unused]] std::span<const pid_t> others) noexcept {
#if defined(__linux__)
  try {
    int cores = affinity_cores(others);
    if (const std::optional<double> quota = cpu_quota.get()) {
      cores = static_cast<int>(std::min(static_cast<double>(cores), std::ceil(*quota)));
    }
    return std::max(1, cores);
  } catch (const std::exception&) {
    return online_cores();  // no memory to look closer
  }
#else
  return online_cores();
#endif
}

namespace {

std::size_t find_last_cache() noexcept {
  constexpr std::size_t kCommon = std::size_t{16} << 20;
#if defined(__linux__)
  try {
    // Not sysconf: on processors with several last caches it gives their sum.
    for (const char* index : {"3", "2"}) {
      const auto text = system_file(std::string("/sys/devices/system/cpu/cpu0/cache/index") + index + "/size");
      if (text) return std::stoul(*text) << (text->find('M') != std::string::npos ? 20 : 10);  // "32768K"
    }
  } catch (const std::exception&) {
    return kCommon;  // no memory to look, or no number
  }
#endif
  return kCommon;
}

}  // namespace

std::size_t usable_memory_bytes() noexcept {
  const std::size_t memory = physical_memory_bytes();
#if defined(__linux__)
  try {
    if (const std::optional<std::uint64_t> limit = memory_limit.get()) {
      return static_cast<std::size_t>(std::min<std::uint64_t>(memory, *limit));
    }
  } catch (const std::exception&) {
    return memory;  // no memory to look closer
  }
#endif
  return memory;
}

std::size_t last_cache_bytes() noexcept {
  static const std::size_t bytes = find_last_cache();  // of the machine: asked once, not by every group
  return bytes;
}

UniqueFd open_pidfd([[maybe_unused]] pid_t pid) noexcept {
#if defined(__linux__) && defined(SYS_pidfd_open)
  const long fd = ::syscall(SYS_pidfd_open, pid, 0);  // closed on exec by definition
  return fd >= 0 ? UniqueFd(static_cast<int>(fd)) : UniqueFd();
#else
  return UniqueFd();
#endif
}

bool pidfd_ended(int pidfd) noexcept {
  pollfd entry{pidfd, POLLIN, 0};
  return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
}

void raise_descriptor_limit() noexcept {
  constexpr rlim_t kEnough = rlim_t{1} << 20;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t most = std::min(limit.rlim_max, kEnough);  // RLIM_INFINITY is the largest number
  if (limit.rlim_cur >= most) return;
  limit.rlim_cur = most;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // refused: it stays as it was
}

std::size_t descriptor_limit() noexcept {
  rlimit limit{};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<std::size_t>(limit.rlim_cur) : 0;
}

const std::string& process_token() {
  // Never destroyed: threads of the library may ask while the process exits.
  static const std::string& token = *new std::string(random_secret());
  return token;
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

std::string host_hint() {
#if defined(__linux__)
  std::string boot_id = system_file("/proc/sys/kernel/random/boot_id").value_or("unknown");
  boot_id.erase(boot_id.find_last_not_of(" \n") + 1);
  struct stat network_namespace {};
  if (::stat("/proc/self/ns/net", &network_namespace) != 0) network_namespace.st_ino = 0;
  return boot_id + "/" + std::to_string(network_namespace.st_ino);
#elif defined(__APPLE__)
  char boot_id[64] = "unknown";
  std::size_t bytes = sizeof(boot_id);
  ::sysctlbyname("kern.bootsessionuuid", boot_id, &bytes, nullptr, 0);
  return boot_id;
#else
  return "unknown";
#endif
}

namespace {

// The addresses of this network namespace, in an order of their own. Not those of one link only: they come and go with
// every container.
std::optional<std::vector<std::string>> own_addresses() {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return std::nullopt;
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> owner(list, ::freeifaddrs);
  std::vector<std::string> addresses;
  for (const ifaddrs* i = list; i != nullptr; i = i->ifa_next) {
    if (i->ifa_addr == nullptr) continue;
    if (i->ifa_addr->sa_family == AF_INET) {
      const auto& address = reinterpret_cast<const sockaddr_in*>(i->ifa_addr)->sin_addr;
      addresses.emplace_back(reinterpret_cast<const char*>(&address), sizeof address);
    } else if (i->ifa_addr->sa_family == AF_INET6) {
      const auto& address = reinterpret_cast<const sockaddr_in6*>(i->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&address)) continue;
      addresses.emplace_back(reinterpret_cast<const char*>(&address), sizeof address);
    }
  }
  std::sort(addresses.begin(), addresses.end());
  return addresses;
}

}  // namespace

std::string machine_id() {
  const std::string hint = host_hint();
  if (hint.starts_with("unknown") || hint.starts_with('/') || hint.ends_with("/0")) return {};
  const auto addresses = own_addresses();
  if (!addresses) return {};
  std::string all = hint + "/";
  for (const std::string& address : *addresses) all += std::to_string(address.size()) + ":" + address;
  const Digest digest = sha256(all);
  return {reinterpret_cast<const char*>(digest.data()), digest.size()};
}

}  // namespace tutti
