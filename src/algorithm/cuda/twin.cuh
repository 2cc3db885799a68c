// Two kernels of one thread each that wait for each other, for a bounded time: whether they run at the same time.
#pragma once

#include "tutti/device/memory.cuh"

namespace tutti::cuda {

struct TwinArgs {
  std::uint64_t* words = nullptr;  // four, zero at first: who has come, then who has seen the other
  int mine = 0;                    // 0 or 1
  std::uint64_t limit_ns = 0;
};

TUTTI_DEVICE void meet_twin(const TwinArgs& args) {
  // relaxed, all: the words are all that there is.
  device::store_relaxed(args.words + args.mine, std::uint64_t{1});
  const std::uint64_t started = device::clock_ns();
  while (device::load_relaxed(args.words + 1 - args.mine) == 0) {
    if (device::clock_ns() - started > args.limit_ns) return;
  }
  device::store_relaxed(args.words + 2 + args.mine, std::uint64_t{1});
}

}  // namespace tutti::cuda
