// Ranks of a program of NCCL's as processes of their own: forked by a test that has used nothing yet, so that each
// reads the environment for itself. Links the library under NCCL's name; a stand-in is the real one. Above a fake
// plug-in or, on GPUs, the real one.
#pragma once

#include <dirent.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "device/nccl/abi.h"
#include "nccl/functions.h"
#include "support/lost_wakeups.h"

#define DECLARE(result, name, parameters, arguments) extern "C" result name parameters;
TUTTI_NCCL_FUNCTIONS(DECLARE)
#undef DECLARE

#if defined(__SANITIZE_THREAD__)
// Ranks end by _exit(), before what has ended in the background has been joined.
extern "C" __attribute__((weak, visibility("default"))) const char* __tsan_default_options() {
  return "report_thread_leaks=0";
}
#endif

namespace nccl_test {

// What a library has recorded since it was last asked.
inline std::string taken(const char* library, const char* function) {
  void* const handle = ::dlopen(library, RTLD_NOW | RTLD_NOLOAD);
  if (handle == nullptr) return {};
  const auto take = reinterpret_cast<const char* (*)()>(::dlsym(handle, function));
  const std::string text = take != nullptr ? take() : "no such function";
  ::dlclose(handle);
  return text;
}
inline int open_descriptors() {
  int count = 0;
  DIR* const folder = ::opendir("/proc/self/fd");
  while (folder != nullptr && ::readdir(folder) != nullptr) ++count;
  if (folder != nullptr) ::closedir(folder);
  return count;
}
// Beside the program if it has been moved.
inline const char* stand_in() {
  const char* const said = std::getenv("TUTTI_TEST_STAND_IN");
  return said != nullptr ? said : STAND_IN_NCCL;
}
inline std::string by_nccl() { return taken(stand_in(), "stand_in_take"); }
// The device of communicators that this thread makes from now on.
inline void on_device(int number) {
  // Stays: the number is a variable of the library, which would go with it where nothing else has loaded it yet.
  static void* const handle = ::dlopen(stand_in(), RTLD_NOW | RTLD_LOCAL);
  reinterpret_cast<void (*)(int)>(::dlsym(handle, "stand_in_device"))(number);
}
// Every communicator of NCCL's has this asynchronous error from now on.
inline void fail_nccl(ncclResult_t error) {
  void* const handle = ::dlopen(stand_in(), RTLD_NOW | RTLD_NOLOAD);
  reinterpret_cast<void (*)(int)>(::dlsym(handle, "stand_in_fails"))(error);
  ::dlclose(handle);
}
#ifdef FAKE_PLUGIN
inline std::string by_tutti() { return taken(FAKE_PLUGIN "/libtutti_cuda.so", "fake_take"); }
inline std::string aborts_of_tutti() { return taken(FAKE_PLUGIN "/libtutti_cuda.so", "fake_take_aborts"); }
// Whether the thread that the last group formed on blocks signals, and whether a thread forms or ends one now.
inline bool blocked_signals() { return taken(FAKE_PLUGIN "/libtutti_cuda.so", "fake_blocks_signals") == "yes"; }
inline bool tutti_works() { return taken(FAKE_PLUGIN "/libtutti_cuda.so", "fake_works") == "yes"; }
// Every group of Tutti's in this process has failed from now on.
inline void fail_tutti() { taken(FAKE_PLUGIN "/libtutti_cuda.so", "fake_fails"); }
#endif

class Rank {
 public:
  Rank(int rank, int size, const std::vector<std::array<int, 2>>& pipes) : rank_(rank), size_(size), pipes_(pipes) {}
  int rank() const { return rank_; }
  int size() const { return size_; }

  // Rank 0's id on all ranks.
  ncclUniqueId id() const {
    ncclUniqueId value{};
    if (rank_ == 0) {
      EXPECT_EQ(ncclGetUniqueId(&value), ncclSuccess);
      for (int r = 1; r < size_; ++r) {
        EXPECT_EQ(::write(pipes_[static_cast<std::size_t>(r)][1], &value, sizeof(value)), ssize_t{sizeof(value)});
      }
    } else {
      EXPECT_EQ(::read(pipes_[static_cast<std::size_t>(rank_)][0], &value, sizeof(value)), ssize_t{sizeof(value)});
    }
    return value;
  }
  // What wake() of the same number, 0 or 1, makes readable: the pipes that carry no id.
  int wake_fd(int number = 0) const { return (number == 0 ? pipes_.front() : pipes_.back())[0]; }
  void wake(int number = 0) const { EXPECT_EQ(::write((number == 0 ? pipes_.front() : pipes_.back())[1], "!", 1), 1); }
  ncclComm_t communicator() const {
    ncclComm_t comm = nullptr;
    EXPECT_EQ(ncclCommInitRank(&comm, size_, id(), rank_), ncclSuccess);
    by_nccl();
    return comm;
  }

 private:
  int rank_, size_;
  const std::vector<std::array<int, 2>>& pipes_;
};

inline ncclResult_t state(ncclComm_t comm) {
  ncclResult_t error = ncclInternalError;
  EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
  return error;
}

// A communicator that does not block, while it is being formed.
inline void begin_without_blocking(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                                   ncclResult_t expected = ncclInProgress) {
  // The beginning of NCCL's configuration.
  struct {
    size_t bytes = 32;
    unsigned magic = 0xcafebeef, version = 22703;
    int blocking = 0;
    int rest[3] = {};
  } config;
  EXPECT_EQ(ncclCommInitRankConfig(comm, size, id, rank, reinterpret_cast<ncclConfig_t*>(&config)), expected);
}
inline ncclComm_t begin_without_blocking(int size, const ncclUniqueId& id, int rank,
                                         ncclResult_t expected = ncclInProgress) {
  ncclComm_t comm = nullptr;
  begin_without_blocking(&comm, size, id, rank, expected);
  return comm;
}

// Runs `body` in `size` processes, bounded.
inline void run_ranks(int size, const std::function<void(Rank&)>& body) {
  std::vector<std::array<int, 2>> pipes(static_cast<std::size_t>(size) + 1);
  for (auto& each : pipes) ASSERT_EQ(::pipe(each.data()), 0);
  std::fflush(nullptr);
  std::vector<pid_t> children;
  for (int r = 0; r < size; ++r) {
    const std::uint64_t before = tutti::test::lost_wakeups();
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      ::alarm(100);
      ::setenv("TUTTI_NCCL", "1", 1);
      ::setenv("TUTTI_NCCL_LIB_PATH", stand_in(), 1);
#ifdef FAKE_PLUGIN
      ::setenv("TUTTI_PLUGIN_PATH", FAKE_PLUGIN, 1);
#endif
      Rank rank(r, size, pipes);
      body(rank);
      EXPECT_EQ(tutti::test::lost_wakeups(), before) << "on rank " << r;
      std::fflush(nullptr);
      ::_exit(testing::Test::HasFailure() ? 1 : 0);
    }
    children.push_back(child);
  }
  for (int r = 0; r < size; ++r) {
    int status = 0;
    ASSERT_EQ(::waitpid(children[static_cast<std::size_t>(r)], &status, 0), children[static_cast<std::size_t>(r)]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << r << ": status " << status;
  }
  for (const auto& each : pipes) {
    ::close(each[0]);
    ::close(each[1]);
  }
}

// The report of rank 0, as a program that ends in order prints it.
inline std::string report_of(int size, const std::function<void(Rank&)>& body) {
  const std::string file = testing::TempDir() + "nccl_report_" + std::to_string(::getpid());
  run_ranks(size, [&](Rank& rank) {
    ::setenv("TUTTI_NCCL_REPORT", "1", 1);
    ::setenv("TUTTI_CUDA_WATCHDOG", "none", 1);  // its thread is not joined where a process ends in order
    body(rank);
    if (rank.rank() != 0 || testing::Test::HasFailure()) return;
    std::freopen(file.c_str(), "w", stderr);
    std::exit(0);
  });
  std::FILE* const written = std::fopen(file.c_str(), "r");
  if (written == nullptr) return "nothing was printed";
  std::string text(4096, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), written));
  std::fclose(written);
  std::remove(file.c_str());
  return text;
}

}  // namespace nccl_test
