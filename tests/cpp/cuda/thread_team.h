// A block of several threads on the host: workers and one control thread, with real barriers between them. For what a
// block of one thread (SerialTeam) cannot show: that its threads decide alike.
//
// Thread rule: a ThreadTeam is one thread's view of the block; all views share a BlockBarrier.
#pragma once

#include <barrier>
#include <cstddef>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "algorithm/cuda/team.cuh"

namespace tutti::cuda::test {

struct BlockBarrier {
  explicit BlockBarrier(int threads) : all(threads), workers(threads - 1), said(static_cast<std::size_t>(threads)) {}
  std::barrier<> all, workers;
  std::vector<char> said;  // by thread: each writes its own between two barriers
};

struct ThreadTeam {
  static constexpr bool kOnDevice = false;
  BlockBarrier* shared = nullptr;
  int thread = 0;  // the last one is the control thread
  int worker_count = 1;
  int block_index = 0;
  int block_count = 1;
  int block() const { return block_index; }
  int blocks() const { return block_count; }
  int workers() const { return worker_count; }
  int worker() const { return thread; }
  bool is_worker() const { return thread < worker_count; }
  void sync() const { shared->all.arrive_and_wait(); }
  void sync_workers() const { shared->workers.arrive_and_wait(); }
  bool any(bool mine) const {
    shared->said[static_cast<std::size_t>(thread)] = mine ? 1 : 0;
    sync();
    bool some = false;
    for (const char one : shared->said) some = some || one != 0;
    sync();  // before the next one writes
    return some;
  }
  bool any_worker(bool mine) const {
    shared->said[static_cast<std::size_t>(thread)] = mine ? 1 : 0;
    sync_workers();
    bool some = false;
    for (int t = 0; t < worker_count; ++t) some = some || shared->said[static_cast<std::size_t>(t)] != 0;
    sync_workers();  // before the next one writes
    return some;
  }
  template <class F>
  void for_peers(int rank, int size, F f) const {
    for (int peer = 0; is_first_control() && peer < size; ++peer) {
      if (peer != rank) f(peer);
    }
  }
  static void step(std::uint64_t number) { device::protocol_step(number); }
  bool is_first_control() const { return thread == worker_count; }
  static bool all_of_warp(bool mine) { return mine; }
};

// Runs body(team) on every thread of a block.
inline void run_block(int workers, const std::function<void(const ThreadTeam&)>& body, int block = 0, int blocks = 1) {
  BlockBarrier shared(workers + 1);
  std::vector<std::thread> threads;
  for (int t = 0; t <= workers; ++t) {
    threads.emplace_back([&, t] { body(ThreadTeam{&shared, t, workers, block, blocks}); });
  }
  for (std::thread& t : threads) t.join();
}

}  // namespace tutti::cuda::test
