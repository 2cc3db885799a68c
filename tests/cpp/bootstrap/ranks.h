// Ranks for the bootstrap tests: threads of this process, or forked processes.
//
// Thread rule: run_threads and run_processes are called from the test's own thread and return when all ranks ended.
#pragma once

#include <dirent.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "net/address.h"
#include "support/lost_wakeups.h"

namespace tutti::test {

// What each rank threw; empty where it returned.
inline std::vector<std::string> run_threads(int size, const std::function<void(int)>& rank_main) {
  std::vector<std::string> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        rank_main(r);
      } catch (const std::exception& e) {
        errors[static_cast<std::size_t>(r)] = e.what();
      }
    });
  }
  for (std::thread& t : threads) t.join();
  return errors;
}

// Forks a process a rank; false where its function returned false, threw, lost a wake-up, or the process was killed.
// The caller must have no other thread that holds a lock.
inline pid_t fork_rank(const std::function<bool()>& rank_main) {
  std::fflush(nullptr);
  const std::uint64_t before = lost_wakeups();
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(300);  // the watchdog: a stuck rank ends by a signal, which wait_for() tells
  bool good = false;
  try {
    good = rank_main();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank process %d: %s\n", static_cast<int>(::getpid()), e.what());
  }
  if (lost_wakeups() != before) std::fprintf(stderr, "rank process %d lost a wake-up\n", static_cast<int>(::getpid()));
  std::fflush(nullptr);
  ::_exit(code_unless_lost(good ? 0 : 1, before));
}

inline bool wait_for(pid_t pid) {
  int status = 0;
  return ::waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

inline std::vector<bool> run_processes(int size, const std::function<bool(int)>& rank_main) {
  std::vector<pid_t> pids;
  for (int r = 0; r < size; ++r) pids.push_back(fork_rank([&] { return rank_main(r); }));
  std::vector<bool> good;
  for (const pid_t pid : pids) good.push_back(wait_for(pid));
  return good;
}

inline int open_descriptors() {
  int count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

// Of any kind.
inline int open_sockets() {
  int count = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    int domain = 0;
    socklen_t bytes = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0) ++count;
  }
  return count;
}

// Where the TCP sockets are at which this process listens.
inline std::vector<SocketAddress> listening_addresses() {
  std::vector<SocketAddress> addresses;
  DIR* directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) throw std::runtime_error("/proc/self/fd cannot be read");
  while (const dirent* entry = ::readdir(directory)) {
    const int fd = std::atoi(entry->d_name);
    int domain = AF_UNIX, listens = 0;
    socklen_t bytes = sizeof(int);
    if (::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) != 0 || domain == AF_UNIX) continue;
    if (::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &bytes) != 0 || listens == 0) continue;
    addresses.push_back(local_address(fd));
  }
  ::closedir(directory);
  return addresses;
}
inline int listening_sockets() { return static_cast<int>(listening_addresses().size()); }

// Whether it comes to be so, in far more time than it takes.
inline bool soon(const std::function<bool()>& so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(15);
  while (!so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace tutti::test
