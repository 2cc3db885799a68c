// What the programs of this folder share: ranks as threads with a GPU each, and times of which the longest of all ranks
// counts.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace tutti::bench {

// Ends the program.
inline void ok(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", call, cudaGetErrorString(error));
  std::exit(1);
}

class GpuRanks {
 public:
  // 0: a rank for each GPU. With more ranks than GPUs they share.
  explicit GpuRanks(int wanted) : devices_(count_devices()), size_(wanted > 0 ? wanted : devices_), barrier_(size_) {
    times_.resize(static_cast<std::size_t>(size_));
  }

  int size() const { return size_; }
  int devices() const { return devices_; }
  int device_of(int rank) const { return rank % devices_; }
  void meet() { barrier_.arrive_and_wait(); }

  // Each rank in a thread, its device current. What one throws ends the program.
  template <class Body>
  void run(Body body) {
    std::vector<std::thread> threads;
    for (int r = 0; r < size_; ++r) {
      threads.emplace_back([this, r, &body] {
        try {
          ok(cudaSetDevice(device_of(r)), "cudaSetDevice");
          body(r);
        } catch (const std::exception& e) {
          std::fflush(stdout);
          std::fprintf(stderr, "rank %d: %s\n", r, e.what());
          std::_Exit(1);
        }
      });
    }
    for (std::thread& t : threads) t.join();
  }

  // `repeats` repetitions after two that do not count; `once` runs one and gives its microseconds. Collective: all
  // ranks get the longest times of all ranks, in rising order.
  template <class Once>
  std::vector<double> measure(int rank, int repeats, Once once) {
    std::vector<double>& times = times_[static_cast<std::size_t>(rank)];
    times.clear();
    for (int i = -2; i < repeats; ++i) {
      meet();
      const double us = once();
      if (i >= 0) times.push_back(us);
    }
    meet();
    std::vector<double> slowest = times_[0];
    for (const std::vector<double>& of_rank : times_) {
      for (std::size_t i = 0; i < of_rank.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
    }
    meet();
    std::sort(slowest.begin(), slowest.end());
    return slowest;
  }

  // Whether the program runs for longer than `budget_s`: the same on all ranks.
  bool out_of_time(int rank, double budget_s) {
    if (rank == 0) {
      stop_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - started_).count() > budget_s;
    }
    meet();
    const bool stop = stop_;
    meet();
    return stop;
  }

 private:
  static int count_devices() {
    int count = 0;
    ok(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
    return count;
  }

  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  const int devices_, size_;
  std::barrier<> barrier_;
  std::vector<std::vector<double>> times_;  // of the measurement under way, by rank
  bool stop_ = false;                       // written by rank 0 between barriers
};

inline double median(const std::vector<double>& sorted) { return sorted[sorted.size() / 2]; }

// Microseconds from `start` to `end`, both of a stream that has passed them.
inline double elapsed_us(cudaEvent_t start, cudaEvent_t end) {
  float ms = 0;
  ok(cudaEventElapsedTime(&ms, start, end), "cudaEventElapsedTime");
  return static_cast<double>(ms) * 1000;
}

// `calls` calls of `issue` on `stream` as a graph, ready to launch.
template <class Issue>
cudaGraphExec_t capture(cudaStream_t stream, int calls, Issue issue) {
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t graph = nullptr;
  ok(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin capture");
  for (int i = 0; i < calls; ++i) issue();
  ok(cudaStreamEndCapture(stream, &captured), "end capture");
  ok(cudaGraphInstantiate(&graph, captured, 0), "cudaGraphInstantiate");
  ok(cudaGraphDestroy(captured), "cudaGraphDestroy");
  ok(cudaGraphUpload(graph, stream), "cudaGraphUpload");
  return graph;
}

}  // namespace tutti::bench
