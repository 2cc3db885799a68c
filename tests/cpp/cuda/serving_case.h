// What the tests of the serving kernels share: other collectives between their calls, and a rank that never comes.
#pragma once

#include <functional>

#include "cuda/collective_case.h"
#include "cuda/host_ranks.h"

namespace tutti::cuda::test {

// An all-reduce of `count` int32 by `algorithm` on the same slots, with its result checked.
inline void run_other_all_reduce(HostRanks& ranks, std::size_t count, std::uint64_t seed, const char* algorithm) {
  CaseShape shape;
  shape.dtype = DataType::kInt32;
  shape.count = count;
  const int size = ranks.size();
  const CollectiveCase c(shape, size, seed);
  const Choice choice =
      choose({shape.collective, shape.dtype, size, count * 4, kMaxBlocks, true}, parse_forced(algorithm));
  std::vector<std::vector<std::byte>> outs(static_cast<std::size_t>(size), std::vector<std::byte>(c.output_bytes()));
  ranks.run([&](int) { return choice.blocks; },
            [&](int r, const SerialTeam& team) {
              std::vector<std::byte> in = c.input(r);
              HostRanks::launch(team, ranks.world(r), c.call(in.data(), outs[static_cast<std::size_t>(r)].data()),
                                choice, 7);
            });
  for (int r = 0; r < size; ++r) {
    ASSERT_EQ(outs[static_cast<std::size_t>(r)], c.expected(r)) << algorithm << ", " << count << " elements";
  }
}

// launch(world, rank, team) runs one block of a call of three ranks. Rank 1 never comes: the others must blame it.
inline void expect_a_missing_rank_found(const char* algorithm,
                                        const std::function<void(const DeviceWorld&, int, const SerialTeam&)>& launch) {
  HostRanks ranks(3);
  for (int r = 0; r < 3; ++r) ranks.host(r).timeout_ns = 400'000'000;
  ranks.run([](int r) { return r == 1 ? 0 : 1; },
            [&](int r, const SerialTeam& team) { launch(ranks.world(r), r, team); });
  for (const int r : {0, 2}) {
    EXPECT_EQ(ranks.host(r).code, static_cast<std::uint64_t>(device::FailureCode::kTimeout)) << algorithm;
    EXPECT_EQ(ranks.host(r).peer, 1u) << algorithm;
  }
}

}  // namespace tutti::cuda::test
