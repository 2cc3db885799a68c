// Collectives that only move data, over messages: every algorithm at every size, even and uneven.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <vector>

#include "algorithm/net/tree.h"
#include "algorithm/net_oracle.h"
#include "algorithm/net_ranks.h"

namespace tutti::test {
namespace {

constexpr std::size_t kSizes[] = {0, 1, 5, 1000, 600'012};

// The block that `from` has for `to`: a pattern of their own, repeated at a length that no segment is a multiple of.
Bytes block(int from, int to, std::size_t bytes) {
  constexpr std::size_t kPattern = 10'007;
  Bytes data(bytes);
  unsigned x = static_cast<unsigned>(from) * 2654435761U + static_cast<unsigned>(to) * 40503U + 17U;
  for (std::size_t i = 0; i < std::min(bytes, kPattern); ++i) {
    x = x * 1664525U + 1013904223U;
    data[i] = static_cast<std::byte>(x >> 24);
  }
  for (std::size_t i = kPattern; i < bytes; i += kPattern) {
    std::memcpy(data.data() + i, data.data(), std::min(kPattern, bytes - i));
  }
  return data;
}

// Bytes of the block that `from` has for `to` in uneven calls: some empty, some of several segments.
std::size_t uneven(int from, int to) {
  const int x = from * 5 + to * 3;
  if (x % 4 == 0) return 0;
  return x % 7 == 1 ? 600'000 : static_cast<std::size_t>(x) * 1000 + 1;
}

// n blocks as a list.
struct List {
  explicit List(const std::vector<std::size_t>& wanted) : sizes(wanted) {
    for (const std::size_t bytes : sizes) blocks.emplace_back(bytes, std::byte{0xee});
    for (auto& b : blocks) pointers.push_back(b.data());
  }
  Blocks get() const { return Blocks::list(pointers.data(), sizes.data()); }
  Bytes& operator[](int r) { return blocks[static_cast<std::size_t>(r)]; }

  std::vector<std::size_t> sizes;
  std::vector<Bytes> blocks;
  std::vector<void*> pointers;
};

List list_of(int n, const std::function<std::size_t(int)>& size) {
  std::vector<std::size_t> sizes;
  for (int r = 0; r < n; ++r) sizes.push_back(size(r));
  return List(sizes);
}

Call moving(Collective collective, int root = -1) {
  Call call;
  call.collective = collective;
  call.dtype = DataType::kUint8;
  call.root = root;
  return call;
}

class NetMove : public ::testing::TestWithParam<int> {
 protected:
  // Every algorithm that does not refuse, at every size.
  void sweep(Collective collective, const std::function<void(NetRank&, const Algorithm&, std::size_t)>& check) {
    const int size = GetParam();
    on_ranks(size, [&](NetRank& rank) {
      for (const auto& algorithm : algorithms_of(collective)) {
        for (const std::size_t bytes : kSizes) {
          if (algorithm->refusal(shape_of(moving(collective), size, bytes)) != nullptr) continue;
          check(rank, *algorithm, bytes);
          if (HasFatalFailure()) return;
        }
      }
    });
  }
};

TEST_P(NetMove, Broadcast) {
  const int size = GetParam();
  sweep(Collective::kBroadcast, [size](NetRank& rank, const Algorithm& algorithm, std::size_t bytes) {
    for (int root = 0; root < size; ++root) {
      Bytes data = rank.rank == root ? block(root, 0, bytes) : Bytes(bytes);
      Call call = moving(Collective::kBroadcast, root);
      call.count = bytes;
      call.input = call.output = Blocks::single(data.data(), bytes);
      ASSERT_TRUE(rank.run(algorithm, call).ok());
      ASSERT_EQ(data, block(root, 0, bytes)) << algorithm.name() << " root " << root;
    }
  });
}

TEST_P(NetMove, AllGather) {
  const int size = GetParam();
  sweep(Collective::kAllGather, [size](NetRank& rank, const Algorithm& algorithm, std::size_t bytes) {
    for (const bool in_place : {false, true}) {
      Bytes output(bytes * static_cast<std::size_t>(size));
      Bytes input = block(rank.rank, 0, bytes);
      Call call = moving(Collective::kAllGather);
      call.count = bytes;
      call.output = Blocks::single(output.data(), bytes);
      if (in_place) std::copy(input.begin(), input.end(), call.output.data(rank.rank));
      call.input = in_place ? Blocks::single(call.output.data(rank.rank), bytes) : Blocks::single(input.data(), bytes);
      ASSERT_TRUE(rank.run(algorithm, call).ok());
      for (int r = 0; r < size; ++r) {
        ASSERT_EQ(Bytes(call.output.data(r), call.output.data(r) + bytes), block(r, 0, bytes));
      }
    }
  });
}

TEST_P(NetMove, UnevenAllGather) {
  const int size = GetParam();
  on_ranks(size, [&](NetRank& rank) {
    // One block is so large that it takes several laps around the ring.
    const auto bytes_of = [](int r) { return r == 1 ? 5'000'003 : uneven(r, 1); };
    List output = list_of(size, bytes_of);
    const Bytes input = block(rank.rank, 1, bytes_of(rank.rank));
    Call call = moving(Collective::kAllGather);
    call.uneven = true;
    call.count = input.size();
    call.input = Blocks::single(input.data(), input.size());
    call.output = output.get();
    ASSERT_TRUE(rank.run(*algorithm_named(Collective::kAllGather, "ring"), call).ok());
    for (int r = 0; r < size; ++r) EXPECT_EQ(output[r], block(r, 1, bytes_of(r)));
  });
}

TEST_P(NetMove, AllToAll) {
  const int size = GetParam();
  sweep(Collective::kAllToAll, [size](NetRank& rank, const Algorithm& algorithm, std::size_t bytes) {
    Bytes input;
    for (int r = 0; r < size; ++r) {
      const Bytes b = block(rank.rank, r, bytes);
      input.insert(input.end(), b.begin(), b.end());
    }
    Bytes output(input.size());
    Call call = moving(Collective::kAllToAll);
    call.count = bytes;
    call.input = Blocks::single(input.data(), bytes);
    call.output = Blocks::single(output.data(), bytes);
    ASSERT_TRUE(rank.run(algorithm, call).ok());
    for (int r = 0; r < size; ++r) {
      ASSERT_EQ(Bytes(call.output.data(r), call.output.data(r) + bytes), block(r, rank.rank, bytes));
    }
  });
}

TEST_P(NetMove, UnevenAllToAll) {
  const int size = GetParam();
  on_ranks(size, [&](NetRank& rank) {
    List input = list_of(size, [&](int r) { return uneven(rank.rank, r); });
    List output = list_of(size, [&](int r) { return uneven(r, rank.rank); });
    for (int r = 0; r < size; ++r) {
      const Bytes b = block(rank.rank, r, uneven(rank.rank, r));
      std::copy(b.begin(), b.end(), input[r].begin());
    }
    Call call = moving(Collective::kAllToAll);
    call.uneven = true;
    call.input = input.get();
    call.output = output.get();
    ASSERT_TRUE(rank.run(*algorithm_named(Collective::kAllToAll, "pairwise"), call).ok());
    for (int r = 0; r < size; ++r) EXPECT_EQ(output[r], block(r, rank.rank, uneven(r, rank.rank)));
  });
}

TEST_P(NetMove, GatherAndScatter) {
  const int size = GetParam();
  const auto gather = algorithm_named(Collective::kGather, "linear");
  const auto scatter = algorithm_named(Collective::kScatter, "linear");
  on_ranks(size, [&](NetRank& rank) {
    for (int root = 0; root < size; ++root) {
      for (const bool even : {false, true}) {
        const auto size_of_block = [&](int r) { return even ? std::size_t{5000} : uneven(r, root); };
        List all = list_of(size, size_of_block);
        const Bytes mine = block(rank.rank, root, size_of_block(rank.rank));
        Call call = moving(Collective::kGather, root);
        call.uneven = !even;
        call.count = even ? 5000 : mine.size();
        call.input = Blocks::single(mine.data(), mine.size());
        if (rank.rank == root) call.output = all.get();
        ASSERT_TRUE(rank.run(*gather, call).ok());
        for (int r = 0; r < size && rank.rank == root; ++r) ASSERT_EQ(all[r], block(r, root, size_of_block(r)));
        // Back again: what the root has gathered.
        Bytes back(mine.size());
        call.collective = Collective::kScatter;
        call.input = rank.rank == root ? all.get() : Blocks{};
        call.output = Blocks::single(back.data(), back.size());
        ASSERT_TRUE(rank.run(*scatter, call).ok());
        ASSERT_EQ(back, mine);
      }
    }
  });
}

// Nobody leaves the barrier before everybody has come to it.
TEST_P(NetMove, Barrier) {
  const int size = GetParam();
  const auto barrier = algorithm_named(Collective::kBarrier, "dissemination");
  std::atomic<int> arrived{0};
  on_ranks(size, [&](NetRank& rank) {
    for (int round = 1; round <= 50; ++round) {
      arrived.fetch_add(1, std::memory_order_relaxed);  // the messages of the barrier order it
      ASSERT_TRUE(rank.run(*barrier, moving(Collective::kBarrier)).ok());
      ASSERT_GE(arrived.load(std::memory_order_relaxed), round * size);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, NetMove, ::testing::Values(1, 2, 3, 4, 7, 8),
                         [](const auto& p) { return "Ranks" + std::to_string(p.param); });

// Whoever is root and however ranks lie: all are on the chain, and it comes to each host once.
TEST(Chain, ComesToNoHostTwice) {
  using Marks = std::vector<int>;
  const std::vector<Marks> layouts = {
      {0}, {0, 0}, {0, 1}, {0, 0, 0}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 0, 0, 1}, {0, 1, 2, 3, 4}, {2, 0, 1, 0, 2, 2, 1}};
  for (const Marks& marks : layouts) {
    const RankMap hosts(marks);
    const int ranks = hosts.ranks();
    for (int root = 0; root < ranks; ++root) {
      std::vector<int> chain{root};
      while (chain_place(chain.back(), root, ranks, &hosts).children() != 0) {
        const TreePlace place = chain_place(chain.back(), root, ranks, &hosts);
        ASSERT_EQ(place.children(), 1U);
        ASSERT_EQ(chain_place(place.child(0), root, ranks, &hosts).parent, chain.back());
        chain.push_back(place.child(0));
        ASSERT_LE(chain.size(), marks.size());
      }
      EXPECT_EQ(chain_place(root, root, ranks, &hosts).parent, -1);
      int crossings = 0;
      for (std::size_t i = 1; i < chain.size(); ++i) crossings += hosts.together(chain[i - 1], chain[i]) ? 0 : 1;
      EXPECT_EQ(crossings, hosts.hosts() - 1) << "root " << root << " of " << ranks;
      std::ranges::sort(chain);
      for (int r = 0; r < ranks; ++r) EXPECT_EQ(chain[static_cast<std::size_t>(r)], r);
    }
  }
}

}  // namespace
}  // namespace tutti::test
