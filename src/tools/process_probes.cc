// The probes that take two processes.
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <vector>

#include "base/clock.h"
#include "base/cross_memory.h"
#include "base/futex.h"
#include "base/process.h"
#include "net/local_socket.h"
#include "tools/probe_child.h"
#include "tools/probes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kTransferBytes = std::size_t{8} << 20;
constexpr std::int32_t kDamaged = -1;  // as a page's error: the bytes are not those that were written

Probe no_answer() { return {false, "no answer within 5 s", 0, ""}; }

// A byte of the pattern that a transfer must bring over unharmed.
std::byte pattern(std::size_t i) noexcept { return static_cast<std::byte>((i * 131) >> 3); }

void fill(std::byte* data, std::size_t bytes) noexcept {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = pattern(i);
}

std::uint32_t count_wrong(const std::byte* data, std::size_t bytes) noexcept {
  std::uint32_t wrong = 0;
  for (std::size_t i = 0; i < bytes; ++i) wrong += data[i] != pattern(i) ? 1 : 0;
  return wrong;
}

// The child of probe_memfd: receives the memory, maps it, writes the pattern.
void map_and_fill(int socket, ProbePage& page) {
  pollfd ready{socket, POLLIN, 0};
  LocalMessage message;
  if (::poll(&ready, 1, static_cast<int>(kProbeNs / 1'000'000)) != 1 ||
      receive_message(socket, message) != SocketStatus::kOk || message.fds.size() != 1) {
    page.error_number = EBADF;
    return reach_stage(page, 1);
  }
  void* mapped = ::mmap(nullptr, kTransferBytes, PROT_READ | PROT_WRITE, MAP_SHARED, message.fds[0].get(), 0);
  if (mapped == MAP_FAILED) {
    page.error_number = errno;
  } else {
    fill(static_cast<std::byte*>(mapped), kTransferBytes);
  }
  reach_stage(page, 1);
}

}  // namespace

Probe probe_memfd() try {
  ProbeMemory memory;
  const UniqueFd file = create_memfd("tutti-probe", kTransferBytes);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return Probe::refused(errno);
  const UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  const Child child([&] { map_and_fill(theirs.get(), memory.page()); });
  if (child.pid() < 0) return Probe::refused(errno);
  const int passed = file.get();
  if (send_message(ours.get(), "memory", {&passed, 1}) != SocketStatus::kOk) {
    return {false, "the socket takes no descriptor", 0, ""};
  }
  if (!await_stage(memory.page(), 1)) return no_answer();
  if (memory.page().error_number != 0) return Probe::refused(memory.page().error_number);
  const Mapping mapped = Mapping::shared(file.get(), kTransferBytes);
  const std::uint32_t wrong = count_wrong(mapped.data(), kTransferBytes);
  if (wrong != 0) return {false, std::to_string(wrong) + " bytes arrived damaged", 0, ""};
  return {true, "8 MB written by another process", 0, ""};
} catch (const Error& error) {
  return {false, error.what(), 0, ""};
}

// Both are children: where Yama restricts ptrace, a parent may read what brothers may not.
Probe probe_cross_memory() try {
  if (!may_read_cross_memory()) return {false, "a filter of system calls (seccomp) watches this process", 0, ""};
  ProbeMemory memory;
  ProbePage& page = memory.page();
  std::vector<std::byte> data(kTransferBytes);
  std::vector<std::byte> got(kTransferBytes);
  const Child owner([&] {
    fill(data.data(), data.size());
    reach_stage(page, 1);
    for (;;) ::pause();
  });
  if (owner.pid() < 0) return Probe::refused(errno);
  if (!await_stage(page, 1)) return no_answer();
  const Child reader([&] {
    page.error_number =
        read_cross_memory(owner.pid(), got.data(), reinterpret_cast<std::uintptr_t>(data.data()), got.size());
    if (page.error_number == 0 && count_wrong(got.data(), got.size()) != 0) page.error_number = kDamaged;
    reach_stage(page, 2);
  });
  if (reader.pid() < 0) return Probe::refused(errno);
  if (!await_stage(page, 2)) return no_answer();
  if (page.error_number == kDamaged) return {false, "bytes arrived damaged", 0, ""};
  if (page.error_number != 0) return Probe::refused(page.error_number);
  if (!cross_memory_pays()) return {false, "8 MB of another process, but at less than 8 GB/s", 0, ""};
  return {true, "8 MB of another process, at 8 GB/s or more", 0, ""};
} catch (const Error& error) {
  return {false, error.what(), 0, ""};
} catch (const std::bad_alloc&) {
  return Probe::refused(ENOMEM);
}

Probe probe_futex() try {
  constexpr std::uint32_t kRounds = 201;
  ProbeMemory memory;
  ProbePage& page = memory.page();
  const Child child([&] {
    for (std::uint32_t round = 0; round < kRounds; ++round) {
      if (!await_stage(page, 2 * round + 1)) return;
      reach_stage(page, 2 * round + 2);
    }
  });
  if (child.pid() < 0) return Probe::refused(errno);
  std::array<std::int64_t, kRounds> times{};
  for (std::uint32_t round = 0; round < kRounds; ++round) {
    const std::int64_t start = now_ns();
    reach_stage(page, 2 * round + 1);
    if (!await_stage(page, 2 * round + 2)) return no_answer();
    times[round] = now_ns() - start;
  }
  std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
  const double microseconds = static_cast<double>(times[kRounds / 2]) / 1e3;
  // A wake that never comes is made up for by the 100 ms slices of await_stage.
  if (microseconds > 50'000) return {false, "wakes do not reach the other process", microseconds, "us"};
  return {true, "round trip of two sleeping processes", microseconds, "us"};
} catch (const Error& error) {
  return {false, error.what(), 0, ""};
}

Probe probe_pidfd() {
  const Child child([] {
    for (;;) ::pause();
  });
  if (child.pid() < 0) return Probe::refused(errno);
  const UniqueFd pidfd = open_pidfd(child.pid());
  if (!pidfd) return {false, "pidfd_open is refused", 0, ""};
  if (pidfd_ended(pidfd.get())) return {false, "a living process is reported dead", 0, ""};
  const std::int64_t start = now_ns();
  ::kill(child.pid(), SIGKILL);
  pollfd ready{pidfd.get(), POLLIN, 0};
  if (::poll(&ready, 1, static_cast<int>(kProbeNs / 1'000'000)) != 1) return no_answer();
  const double microseconds = static_cast<double>(now_ns() - start) / 1e3;
  if (!pidfd_ended(pidfd.get())) return {false, "a dead process is reported alive", 0, ""};
  return {true, "a killed process was seen", microseconds, "us"};
}

}  // namespace tutti
