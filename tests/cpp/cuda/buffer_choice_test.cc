// Which registered buffer the ranks of a group take for an allocation.
#include "communicator/buffer_choice.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace tutti::test {
namespace {

static_assert(sizeof(BufferOffer) < 1024, "docs/gpu.md says what an agreement costs");

BufferOffer offer(std::uint64_t bytes, std::initializer_list<std::size_t> free = {}) {
  BufferOffer made;
  made.bytes = bytes;
  made.shares = 1;
  for (const std::size_t i : free) made.set_free(i);
  return made;
}

TEST(BufferChoice, TakesTheFirstThatIsFreeOnAllRanks) {
  const std::vector<BufferOffer> offers{offer(8, {0, 2, 70, 895}), offer(8, {1, 2, 70}), offer(8, {0, 1, 2, 70, 895})};
  EXPECT_EQ(choose_buffer(offers, 896), (BufferChoice{BufferSource::kReused, 2}));
  EXPECT_EQ(choose_buffer({offer(8, {70, 895}), offer(8, {70})}, 896), (BufferChoice{BufferSource::kReused, 70}));
  EXPECT_EQ(choose_buffer({offer(8, {895}), offer(8, {895})}, 896), (BufferChoice{BufferSource::kReused, 895}));
}

TEST(BufferChoice, MakesANewOneUpToABound) {
  const std::vector<BufferOffer> offers{offer(8, {0}), offer(8, {1})};
  EXPECT_EQ(choose_buffer(offers, 2).source, BufferSource::kNew);
  EXPECT_EQ(choose_buffer(offers, BufferOffer::kMost - 1).source, BufferSource::kNew);
  EXPECT_EQ(choose_buffer(offers, BufferOffer::kMost).source, BufferSource::kOrdinary);
}

TEST(BufferChoice, OneRankThatDiffersKeepsAllFromSharing) {
  BufferOffer captures = offer(8, {0});
  captures.shares = 0;
  EXPECT_EQ(choose_buffer({offer(8, {0}), captures}, 1).source, BufferSource::kOrdinary);
  EXPECT_EQ(choose_buffer({captures, offer(8, {0})}, 1).source, BufferSource::kOrdinary);
  EXPECT_EQ(choose_buffer({offer(8, {0}), offer(16, {0})}, 1).source, BufferSource::kOrdinary);
}

// Ranks that free their tensors at times of their own: what one of them still uses is never handed out, and all ranks
// always use the same buffer for the same allocation.
TEST(BufferChoice, FollowsRanksThatFreeAtDifferentTimes) {
  constexpr std::size_t kRanks = 3;
  const std::uint64_t seed = 20;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  std::map<std::uint64_t, std::vector<std::array<bool, kRanks>>> used;  // by size: of each buffer, the ranks
  std::size_t reused = 0;
  for (int step = 0; step < 2000; ++step) {
    const std::uint64_t bytes = 1 + random() % 3;
    auto& buffers = used[bytes];
    std::vector<BufferOffer> offers;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      offers.push_back(offer(bytes));
      for (std::size_t i = 0; i < buffers.size(); ++i) {
        if (!buffers[i][rank]) offers.back().set_free(i);
      }
    }
    const BufferChoice choice = choose_buffer(offers, buffers.size());
    std::size_t index = choice.index;
    if (choice.source == BufferSource::kNew) {
      index = buffers.size();
      buffers.emplace_back();
    }
    ASSERT_NE(choice.source, BufferSource::kOrdinary);
    reused += choice.source == BufferSource::kReused;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_LT(index, buffers.size());
      ASSERT_FALSE(buffers[index][rank]) << "step " << step << " rank " << rank;
      buffers[index][rank] = true;
    }
    for (auto& [size, all] : used) {
      for (auto& ranks : all) {
        for (bool& taken : ranks) taken = taken && random() % 4 != 0;
      }
    }
  }
  EXPECT_GT(reused, 1900u);
}

}  // namespace
}  // namespace tutti::test
