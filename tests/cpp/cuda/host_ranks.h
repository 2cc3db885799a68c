// The device code of src/algorithm/cuda on the host: every block of every rank is a thread, scratch is plain memory,
// packets are atomic words of 64 bits. What a GPU would run, without its hardware.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "algorithm/cuda/kernel_set.cuh"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/cuda/messages.cuh"
#include "base/mapping.h"
#include "cuda/collective_case.h"

namespace tutti::cuda::test {

// f.operator()<R>() for how elements are combined.
template <class F>
void with_reducer(DataType dtype, ReduceOp op, F f) {
  const bool sum = op == ReduceOp::kSum || op == ReduceOp::kAvg;
  if (sum && dtype == DataType::kFloat32) return f.template operator()<SumF32>();
  if (sum && dtype == DataType::kBfloat16) return f.template operator()<SumBf16>();
  if (sum && dtype == DataType::kFloat16) return f.template operator()<SumF16>();
  f.template operator()<ReduceAny>();
}

inline Choice choice_for(const CollectiveCase& c, int size, const char* algorithm) {
  CudaShape shape{c.shape().collective, c.shape().dtype, size, 0, kMaxBlocks, true};
  std::byte none{};
  shape.bytes = agreed_bytes(c.call(&none, &none), size);
  return choose(shape, parse_forced(algorithm));
}

class HostRanks {
 public:
  explicit HostRanks(int size, std::uint64_t first_sequence = 0, ScratchUse use = ScratchUse::kAll)
      : size_(size), worlds_(static_cast<std::size_t>(size)) {
    const ScratchLayout layout(size, use);
    for (int r = 0; r < size; ++r) {
      // Zero pages until touched.
      const UniqueFd memory = create_memfd("scratch", layout.total_bytes());
      scratch_.push_back(Mapping::shared(memory.get(), layout.total_bytes()));
      states_.push_back(std::make_unique<RankState>());
      hosts_.push_back(std::make_unique<device::HostControl>());
      for (BlockState& block : states_.back()->blocks) block.sequence = block.pieces = first_sequence;
    }
    for (int r = 0; r < size; ++r) {
      DeviceWorld& world = worlds_[static_cast<std::size_t>(r)];
      world.rank = r;
      world.size = size;
      world.layout = layout;
      world.state = states_[static_cast<std::size_t>(r)].get();
      for (int p = 0; p < size; ++p) world.scratch[p] = scratch(p);
      world.control.rank = r;
      world.control.size = size;
      world.control.failed = &world.state->failed;
      world.control.poison = reinterpret_cast<std::uint64_t*>(scratch(r) + layout.poison());
      for (int p = 0; p < size; ++p) {
        world.control.peer_poison[p] = reinterpret_cast<std::uint64_t*>(scratch(p) + layout.poison());
      }
      world.control.host = hosts_[static_cast<std::size_t>(r)].get();
      hosts_[static_cast<std::size_t>(r)]->timeout_ns = 60'000'000'000;
    }
  }

  int size() const { return size_; }
  DeviceWorld& world(int r) { return worlds_[static_cast<std::size_t>(r)]; }
  device::HostControl& host(int r) { return *hosts_[static_cast<std::size_t>(r)]; }
  // As on GPUs with room for one block each: run() begins a block of every rank, the last ones first, when the ones
  // before have ended.
  void run_one_block_at_a_time() { one_at_a_time_ = true; }

  // Runs body(rank, block) for all blocks of all ranks at once.
  void run(const std::function<int(int)>& blocks_of, const std::function<void(int, const SerialTeam&)>& body) {
    std::vector<std::thread> threads;
    const auto join = [&] {
      for (std::thread& t : threads) t.join();
      threads.clear();
    };
    int most = 0;
    for (int r = 0; r < size_; ++r) most = std::max(most, blocks_of(r));
    for (int b = most - 1; b >= 0; --b) {
      for (int r = 0; r < size_; ++r) {
        if (b >= blocks_of(r)) continue;
        threads.emplace_back([&, r, b] {
          const SerialTeam team{b, blocks_of(r)};
          body(r, team);
        });
      }
      if (one_at_a_time_) join();
    }
    join();
  }

  // One collective, as the communicator would launch it.
  static void launch(const SerialTeam& team, const DeviceWorld& world, const Call& call, const Choice& choice,
                     std::uint32_t fingerprint) {
    if (choice.two_shot) {
      const TwoShotArgs args = make_two_shot(call, world.size, choice, fingerprint);
      switch (choice.protocol) {
        case Protocol::kLL:
          return with_reducer(call.dtype, call.op, [&]<class R>() { ll_two_shot<R>(team, world, args); });
        case Protocol::kLL128:
          return with_reducer(call.dtype, call.op, [&]<class R>() { ll128_two_shot<R>(team, world, args); });
        case Protocol::kBulk:
          return with_reducer(call.dtype, call.op, [&]<class R>() { bulk_two_shot<R>(team, world, args); });
      }
    }
    const bool reduce = reduces(call.collective);
    // Every other rank takes the kernel for equal parts: the wire is the same.
    const auto uniform = make_uniform(call, world.size, choice, fingerprint);
    if (choice.protocol == Protocol::kLL && uniform && world.size > 1 && world.rank % 2 == 0) {
      return with_size<2>(world.size, [&]<int N>() {
        if (!reduce) return ll_uniform_copy<N>(team, world, *uniform);
        with_reducer(call.dtype, call.op, [&]<class R>() { ll_uniform_reduce<R, N>(team, world, *uniform); });
      });
    }
    const ExchangeArgs args = make_exchange(call, world.rank, world.size, choice, fingerprint);
    switch (choice.protocol) {
      case Protocol::kLL:
        if (!reduce) return ll_copy(team, world, args);
        return with_reducer(call.dtype, call.op, [&]<class R>() { ll_reduce<R>(team, world, args); });
      case Protocol::kLL128:
        if (!reduce) return ll128_copy(team, world, args);
        return with_reducer(call.dtype, call.op, [&]<class R>() { ll128_reduce<R>(team, world, args); });
      case Protocol::kBulk:
        if (!reduce) return bulk_copy(team, world, args);
        return with_reducer(call.dtype, call.op, [&]<class R>() { bulk_reduce<R>(team, world, args); });
    }
  }

 private:
  // f.operator()<N>() for the size of the group.
  template <int N, class F>
  static void with_size(int size, F f) {
    if constexpr (N < device::kMaxRanks) {
      if (size != N) return with_size<N + 1>(size, f);
    }
    f.template operator()<N>();
  }
  std::byte* scratch(int r) { return scratch_[static_cast<std::size_t>(r)].data(); }

  int size_;
  bool one_at_a_time_ = false;
  std::vector<DeviceWorld> worlds_;
  std::vector<Mapping> scratch_;
  std::vector<std::unique_ptr<RankState>> states_;
  std::vector<std::unique_ptr<device::HostControl>> hosts_;
};

}  // namespace tutti::cuda::test
