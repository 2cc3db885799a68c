// Random sequences of calls that few ranks wait for: rooted ones, empty ones, and uneven ones of any sizes. Whatever
// the lead of one rank over another, each call gives what it should.
#include <gtest/gtest.h>
#include <sched.h>

#include <cstring>
#include <random>
#include <vector>

#include "arena/random_seed.h"
#include "communicator/calls.h"
#include "communicator/thread_ranks.h"

namespace tutti::test {
namespace {

// What rank `from` has for rank `to` in call `number`.
std::vector<int> block(std::size_t number, int from, int to, std::size_t count) {
  std::vector<int> x(count);
  for (std::size_t i = 0; i < count; ++i)
    x[i] = static_cast<int>(number * 10'000 + static_cast<std::size_t>(from * 100 + to * 10) + i % 7);
  return x;
}

struct BlockList {
  std::vector<std::vector<int>> data;
  std::vector<void*> pointers;
  std::vector<std::size_t> bytes;
  void add(std::vector<int> x) {
    data.push_back(std::move(x));
    bytes.push_back(data.back().size() * sizeof(int));
  }
  Blocks blocks() {
    pointers.clear();
    for (auto& x : data) pointers.push_back(x.data());
    return Blocks::list(pointers.data(), bytes.data());
  }
};

// Sizes by sender and receiver, the same on all ranks; mostly none.
std::size_t uneven_size(std::uint32_t seed, int from, int to) {
  const std::uint32_t drawn = (seed ^ static_cast<std::uint32_t>(from * 31 + to * 7)) * 2654435761U >> 16;
  return seed % 2 == 0 ? 0 : drawn % 3 == 0 ? drawn % 1000 : drawn % 4;
}

void all_to_all(Communicator& c, std::size_t number, std::uint32_t seed) {
  BlockList in, out;
  for (int r = 0; r < c.size(); ++r) {
    in.add(block(number, c.rank(), r, uneven_size(seed, c.rank(), r)));
    out.add(std::vector<int>(uneven_size(seed, r, c.rank()), -1));
  }
  Call call = call_of(Collective::kAllToAll, 0, in.blocks(), out.blocks(), -1, DataType::kInt32);
  call.uneven = true;
  c.run(call);
  for (int r = 0; r < c.size(); ++r) {
    ASSERT_EQ(out.data[static_cast<std::size_t>(r)], block(number, r, c.rank(), uneven_size(seed, r, c.rank())));
  }
}

void all_gather(Communicator& c, std::size_t number, std::uint32_t seed) {
  std::vector<int> mine = block(number, c.rank(), 0, uneven_size(seed, c.rank(), 0));
  BlockList out;
  for (int r = 0; r < c.size(); ++r) out.add(std::vector<int>(uneven_size(seed, r, 0), -1));
  Call call = call_of(Collective::kAllGather, mine.size(), Blocks::single(mine.data(), mine.size() * sizeof(int)),
                      out.blocks(), -1, DataType::kInt32);
  call.uneven = true;
  c.run(call);
  for (int r = 0; r < c.size(); ++r) {
    ASSERT_EQ(out.data[static_cast<std::size_t>(r)], block(number, r, 0, uneven_size(seed, r, 0)));
  }
}

void broadcast(Communicator& c, std::size_t number, std::uint32_t seed, int root) {
  const std::vector<int> want = block(number, root, 0, seed % 1200);
  std::vector<int> x = c.rank() == root ? want : std::vector<int>(want.size(), -1);
  const Blocks blocks = Blocks::single(x.data(), x.size() * sizeof(int));
  c.run(call_of(Collective::kBroadcast, x.size(), blocks, blocks, root, DataType::kInt32));
  ASSERT_EQ(x, want);
}

void gather(Communicator& c, std::size_t number, std::uint32_t seed, int root) {
  const std::size_t count = seed % 50;
  std::vector<int> mine = block(number, c.rank(), 0, count);
  std::vector<int> all(count * static_cast<std::size_t>(c.size()), -1);
  c.run(call_of(Collective::kGather, count, Blocks::single(mine.data(), count * sizeof(int)),
                Blocks::single(all.data(), count * sizeof(int)), root, DataType::kInt32));
  if (c.rank() != root) return;
  std::vector<int> want;
  for (int r = 0; r < c.size(); ++r) {
    const std::vector<int> theirs = block(number, r, 0, count);
    want.insert(want.end(), theirs.begin(), theirs.end());
  }
  ASSERT_EQ(all, want);
}

TEST(CallSequences, RootedEmptyAndUnevenCallsFollowEachOtherFreely) {
  const std::uint32_t seed = random_seed();
  SCOPED_TRACE("TUTTI_TEST_SEED=" + std::to_string(seed));
  for (const int ranks : {2, 3, 5}) {
    World world;
    world.size = ranks;
    run_ranks(world, [&](Communicator& c) {
      std::mt19937 random(seed);                                             // the program: equal on all ranks
      std::mt19937 delays(seed + 1 + static_cast<std::uint32_t>(c.rank()));  // each has its own
      for (std::size_t number = 0; number < 400; ++number) {
        const auto drawn = static_cast<std::uint32_t>(random());
        const int root = static_cast<int>(random() % static_cast<std::uint32_t>(c.size()));
        for (std::uint32_t pause = delays() % 16 == 0 ? delays() % 50 : 0; pause > 0; --pause) ::sched_yield();
        switch (random() % 6) {
          case 0:
          case 1:
            all_to_all(c, number, drawn);
            break;
          case 2:
            all_gather(c, number, drawn);
            break;
          case 3:
            gather(c, number, drawn, root);
            break;
          default:
            broadcast(c, number, drawn, root);
        }
        if (testing::Test::HasFatalFailure()) return;
      }
    });
  }
}

}  // namespace
}  // namespace tutti::test
