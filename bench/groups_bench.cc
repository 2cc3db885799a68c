// How long it takes to make a group: groups_bench [RANKS [GROUPS]], ranks as threads, settings from the environment.
//
// Prints the first group of the process and the median of the others, in microseconds of the slowest rank: with
// TUTTI_PLAN_PATH and TUTTI_CACHE_DIR it shows what plans add, proven anew, by verdicts on disk, and in the process.
#include <algorithm>
#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "bootstrap/memory_store.h"
#include "tutti/communicator.h"

namespace tutti {
namespace {

// Nanoseconds until this rank's group stands, by group.
std::vector<double> make_groups(MemoryStore& store, std::barrier<>& all, int rank, int ranks, int groups) {
  std::vector<double> times;
  CommunicatorOptions options;
  options.config = config_from_environment();
  for (int i = 0; i < groups; ++i) {
    all.arrive_and_wait();
    const std::int64_t start = now_ns();
    const auto group = Communicator::create(store, "group" + std::to_string(i), rank, ranks, options);
    times.push_back(static_cast<double>(now_ns() - start));
    all.arrive_and_wait();
  }
  return times;
}

int run(int ranks, int groups) {
  MemoryStore store;
  std::barrier<> all(ranks);
  std::vector<std::vector<double>> times(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        times[static_cast<std::size_t>(rank)] = make_groups(store, all, rank, ranks, groups);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        std::exit(1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<double> slowest(static_cast<std::size_t>(groups));
  for (const std::vector<double>& of_rank : times) {
    for (std::size_t i = 0; i < slowest.size(); ++i) slowest[i] = std::max(slowest[i], of_rank[i]);
  }
  std::sort(slowest.begin() + 1, slowest.end());
  const double later = slowest[1 + (slowest.size() - 1) / 2];
  std::printf("%d ranks: first group %.0f us, median of %d later ones %.0f us\n", ranks, slowest[0] / 1000, groups - 1,
              later / 1000);
  return 0;
}

}  // namespace
}  // namespace tutti

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const int groups = argc > 2 ? std::atoi(argv[2]) : 50;
  if (ranks < 1 || groups < 2) {
    std::fprintf(stderr, "usage: groups_bench [RANKS [GROUPS]], with at least two groups\n");
    return 2;
  }
  return tutti::run(ranks, groups);
}
