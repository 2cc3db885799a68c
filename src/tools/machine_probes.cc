// The probes of this process alone: limits, pages, the arena, network interfaces.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <memory>
#include <sstream>
#include <thread>

#include "base/clock.h"
#include "base/futex.h"
#include "base/mapping.h"
#include "base/thread.h"
#include "bootstrap/memory_store.h"
#include "device/cpu/arena.h"
#include "tools/probes.h"
#include "tutti/cuda/communicator.h"
#include "tutti/cuda/report.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

// First line of a small file, empty when it cannot be read.
std::string read_line(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// Kilobytes that /proc/self/smaps gives `field` for the mapping that holds `address`.
long smaps_kilobytes(const void* address, const std::string& field) {
  std::ifstream smaps("/proc/self/smaps");
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  bool inside = false;
  for (std::string line; std::getline(smaps, line);) {
    std::uintptr_t first = 0;
    std::uintptr_t last = 0;
    char dash = 0;
    std::istringstream range(line);
    if (range >> std::hex >> first >> dash >> last && dash == '-') {
      inside = first <= wanted && wanted < last;
    } else if (inside && line.rfind(field + ":", 0) == 0) {
      return std::stol(line.substr(field.size() + 1));
    }
  }
  return 0;
}

// Whether the huge-page-aligned middle of [data, data + 2 * kHugeBytes) becomes huge pages when asked to.
bool becomes_huge(std::byte* data, const char* field) {
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(data);
  std::byte* aligned = data + ((kHugeBytes - start % kHugeBytes) % kHugeBytes);
  ::madvise(aligned, kHugeBytes, MADV_HUGEPAGE);
  for (std::size_t i = 0; i < kHugeBytes; i += 4096) aligned[i] = std::byte{1};
  return smaps_kilobytes(aligned, field) > 0;
}

// What one 16 MB transfer from an address to itself takes.
class SelfTransfer {
 public:
  Probe run(const sockaddr* address, socklen_t length) {
    const UniqueFd listener(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!listener || ::bind(listener.get(), address, length) != 0 || ::listen(listener.get(), 1) != 0) {
      return Probe::refused(errno);
    }
    sockaddr_storage bound{};
    socklen_t bound_length = sizeof(bound);
    if (::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&bound), &bound_length) != 0)
      return Probe::refused(errno);
    const UniqueFd sender(::socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!sender || !bounded(sender.get()) || !bounded(listener.get()) ||
        ::connect(sender.get(), reinterpret_cast<sockaddr*>(&bound), bound_length) != 0) {
      return Probe::refused(errno);
    }
    const UniqueFd receiver(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!receiver || !bounded(receiver.get())) return Probe::refused(errno);
    return move(sender.get(), receiver.get());
  }

 private:
  static constexpr std::size_t kBytes = std::size_t{16} << 20;

  // Every call on the socket ends within 5 s.
  static bool bounded(int fd) noexcept {
    const timeval limit{5, 0};
    return ::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit)) == 0 &&
           ::setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit)) == 0;
  }

  static Probe move(int sender, int receiver) {
    const std::int64_t start = now_ns();
    std::thread writer = start_joined_thread("that sends to itself", [sender] {
      const std::unique_ptr<std::byte[]> block(new std::byte[kBlockBytes]());
      for (std::size_t sent = 0; sent < kBytes;) {
        const ssize_t n = ::send(sender, block.get(), kBlockBytes, MSG_NOSIGNAL);
        if (n <= 0) return;
        sent += static_cast<std::size_t>(n);
      }
    });
    const std::unique_ptr<std::byte[]> block(new std::byte[kBlockBytes]);
    std::size_t received = 0;
    ssize_t n = 1;
    while (received < kBytes && (n = ::recv(receiver, block.get(), kBlockBytes, 0)) > 0) {
      received += static_cast<std::size_t>(n);
    }
    const int failure = errno;
    writer.join();
    if (received < kBytes) return Probe::refused(n < 0 ? failure : ECONNRESET);
    return {true, "16 MB", static_cast<double>(kBytes) / static_cast<double>(now_ns() - start), "GB/s"};
  }

  static constexpr std::size_t kBlockBytes = std::size_t{256} << 10;
};

// The printable address if it is one that ranks could be reached at, else empty.
std::string reachable_address(const ifaddrs& entry) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (entry.ifa_addr->sa_family == AF_INET) {
    const auto* in = reinterpret_cast<const sockaddr_in*>(entry.ifa_addr);
    ::inet_ntop(AF_INET, &in->sin_addr, text.data(), text.size());
  } else if (entry.ifa_addr->sa_family == AF_INET6) {
    const auto* in = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
    if (IN6_IS_ADDR_LINKLOCAL(&in->sin6_addr)) return "";
    ::inet_ntop(AF_INET6, &in->sin6_addr, text.data(), text.size());
  }
  return text.data();
}

}  // namespace

Probe Probe::refused(int error_number) { return {false, std::strerror(error_number), 0, ""}; }

Probe probe_membarrier() {
  if (!register_light_barrier()) return {false, "MEMBARRIER_CMD_REGISTER is refused", 0, ""};
  const std::int64_t start = now_ns();
  if (!heavy_barrier()) return {false, "membarrier is refused", 0, ""};
  return {true, "one barrier", static_cast<double>(now_ns() - start) / 1e3, "us"};
}

Probe probe_memory_lock() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return Probe::refused(errno);
  const double bytes = limit.rlim_cur == RLIM_INFINITY ? -1 : static_cast<double>(limit.rlim_cur);
  void* page = ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return Probe::refused(errno);
  const bool locked = ::mlock(page, 4096) == 0;
  const int failure = errno;
  ::munmap(page, 4096);
  return {locked, locked ? "a page was locked" : std::strerror(failure), bytes, "bytes"};
}

Probe probe_huge_pages() {
  void* mapped = ::mmap(nullptr, 2 * kHugeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return Probe::refused(errno);
  const bool huge = becomes_huge(static_cast<std::byte*>(mapped), "AnonHugePages");
  ::munmap(mapped, 2 * kHugeBytes);
  return {huge, read_line("/sys/kernel/mm/transparent_hugepage/enabled"), 0, ""};
}

Probe probe_shared_huge_pages() try {
  const UniqueFd file = create_memfd("tutti-probe", 2 * kHugeBytes);
  const Mapping mapping = Mapping::shared(file.get(), 2 * kHugeBytes);
  const bool huge = becomes_huge(mapping.data(), "ShmemPmdMapped");
  return {huge, read_line("/sys/kernel/mm/transparent_hugepage/shmem_enabled"), 0, ""};
} catch (const Error& error) {
  return {false, error.what(), 0, ""};
}

Probe probe_arena() try {
  const std::unique_ptr<Arena> arena = Arena::create(0);
  void* block = arena->allocate(kHugeBytes);
  if (block == nullptr) return {false, "the arena gives no memory", 0, ""};
  std::memset(block, 1, kHugeBytes);
  const double bytes = static_cast<double>(arena->bytes());
  arena->deallocate(block);
  return {true, "2 MB taken from it", bytes, "bytes"};
} catch (const Error& error) {
  return {false, error.what(), 0, ""};
}

Probe probe_descriptors() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return Probe::refused(errno);
  return {limit.rlim_cur >= 1024, "limit of open files", static_cast<double>(limit.rlim_cur), "descriptors"};
}

std::vector<InterfaceProbe> probe_interfaces() {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> list(first, &::freeifaddrs);
  std::vector<InterfaceProbe> probes;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const std::string address = reachable_address(*entry);
    if (address.empty()) continue;
    const socklen_t length = entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    probes.push_back({entry->ifa_name, address, (entry->ifa_flags & IFF_LOOPBACK) != 0,
                      SelfTransfer().run(entry->ifa_addr, length)});
  }
  return probes;
}

std::string try_cuda_group() {
  const CudaReport report = cuda_report();
  if (report.devices.empty()) {
    throw_error(ErrorKind::kUnsupported, report.plugin_problem.empty() ? report.problem : report.plugin_problem);
  }
  const int devices = static_cast<int>(report.devices.size()), size = std::clamp(devices, 2, 8);
  const auto store = std::make_shared<MemoryStore>();
  std::vector<std::thread> ranks;
  std::vector<std::string> transports(static_cast<std::size_t>(size)), problems(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    ranks.push_back(start_joined_thread("of a rank that probes GPUs", [&, r] {
      const auto at = static_cast<std::size_t>(r);
      try {
        CudaOptions options;
        options.device = r % devices;
        options.timeout = std::chrono::seconds(20);
        transports[at] = CudaCommunicator::create(store, "doctor", r, size, options)->transport();
      } catch (const std::exception& e) {
        problems[at] = e.what();
      }
    }));
  }
  for (std::thread& rank : ranks) rank.join();
  for (int r = 0; r < size; ++r) {
    const std::string& problem = problems[static_cast<std::size_t>(r)];
    if (!problem.empty()) throw_error(ErrorKind::kUnsupported, "rank " + std::to_string(r) + ": " + problem);
  }
  return transports[0];
}

}  // namespace tutti
