// Ranks that share rings: threads over one block of memory, or forked processes over a shared mapping.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <memory>
#include <new>
#include <vector>

#include "transport/conformance.h"
#include "transport/shm/ring.h"
#include "transport/shm/shm_transport.h"

namespace tutti::test {

// The rings of all pairs and a flag a rank that says it is gone, in memory that forked processes share.
class SharedRings {
 public:
  SharedRings(int ranks, std::size_t capacity) : ranks_(ranks), capacity_(capacity) {
    const auto n = static_cast<std::size_t>(ranks);
    bytes_ = n * sizeof(std::atomic<int>) + 128 + n * n * ring_bytes(capacity);
    void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    memory_ = static_cast<std::byte*>(memory);
    rings_ = memory_ + (n * sizeof(std::atomic<int>) + 127) / 128 * 128;
  }
  ~SharedRings() { ::munmap(memory_, bytes_); }
  SharedRings(const SharedRings&) = delete;

  std::byte* ring(int src, int dst) const {
    return rings_ + static_cast<std::size_t>(src * ranks_ + dst) * ring_bytes(capacity_);
  }
  // release, acquire: what the rank wrote before it went can be read by who sees that it is gone.
  void leave(int rank) { gone(rank).store(1, std::memory_order_release); }
  Status liveness(int rank) {
    return gone(rank).load(std::memory_order_acquire) != 0 ? Status::kPeerLost : Status::kOk;
  }

  ShmTransportOptions options(int rank) {
    ShmTransportOptions options;
    options.index = rank;
    for (int i = 0; i < ranks_; ++i) options.rank_of_index.push_back(i);
    options.ring_capacity = capacity_;
    options.ring_memory = [this](int src, int dst) { return ring(src, dst); };
    options.liveness = [this](int peer) { return liveness(peer); };
    return options;
  }

 private:
  std::atomic<int>& gone(int rank) { return reinterpret_cast<std::atomic<int>*>(memory_)[rank]; }

  int ranks_;
  std::size_t capacity_;
  std::size_t bytes_ = 0;
  std::byte* memory_ = nullptr;
  std::byte* rings_ = nullptr;
};

// Forks; the child's expectations fail the test by its exit code.
inline pid_t fork_rank(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t pid = ::fork();
  if (pid != 0) return pid;
  ::alarm(60);  // the bound of whatever hangs
  body();
  std::fflush(nullptr);
  ::_exit(::testing::Test::HasFailure() ? 1 : 0);
}

inline void expect_clean_exit(pid_t pid) {
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "the rank's process ended with status " << status;
}

}  // namespace tutti::test
