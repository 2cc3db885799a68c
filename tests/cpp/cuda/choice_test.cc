// What the table chooses: always something that can run, the same for all ranks, and what was measured to be fast.
#include "algorithm/cuda/choice.h"

#include <gtest/gtest.h>

#include <string>

#include "algorithm/cuda/exchange_args.h"
#include "channel/cuda/scratch_layout.h"
#include "tutti/error.h"

namespace tutti::cuda::test {
namespace {

constexpr std::size_t kKB = 1024, kMB = 1024 * kKB;

Choice chosen(Collective collective, std::size_t bytes, int size, const char* forced = "", bool ll128 = true) {
  return choose({collective, DataType::kBfloat16, size, bytes, kMaxBlocks, ll128}, parse_forced(forced));
}

TEST(Choice, EveryPartFitsItsSlots) {
  for (const Collective collective : {Collective::kAllReduce, Collective::kAllGather}) {
    for (int size = 2; size <= 8; ++size) {
      for (const bool ll128 : {true, false}) {
        for (std::size_t bytes = 1; bytes <= 1024 * kMB; bytes = bytes * 3 / 2 + 1) {
          SCOPED_TRACE(std::to_string(bytes) + " bytes, " + std::to_string(size) + " ranks");
          const Choice c = chosen(collective, bytes, size, "", ll128);
          const std::size_t part = c.two_shot ? part_size(bytes, size) : bytes;
          const std::size_t each = part_size(part, c.blocks);
          ASSERT_GE(c.blocks, 1);
          ASSERT_LE(c.blocks, kMaxBlocks);
          ASSERT_EQ(c.threads % 32, 0);
          ASSERT_GE(c.threads, 32);
          ASSERT_LE(c.threads, 512);
          if (c.protocol == Protocol::kLL) {
            ASSERT_LE(each, kLLItems * 16);
          }
          if (c.protocol == Protocol::kLL128) {
            ASSERT_LE(each, kLL128Lines * 120);
            ASSERT_TRUE(ll128);
          }
          ASSERT_EQ(c.piece_bytes % 16, 0u);
          ASSERT_GT(c.piece_bytes, 0u);
          ASSERT_LE(c.piece_bytes, kBulkPieceBytes);
        }
      }
    }
  }
}

TEST(Choice, OneShotForSmallMessagesTwoForLarge) {
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 1 * kKB, 4)), "ll_one_shot@1x64");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 16 * kKB, 4)), "ll_one_shot@16x64");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 64 * kKB, 4)), "ll_one_shot@32x128");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 128 * kKB, 4)), "ll128_one_shot@32x256");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 128 * kKB, 2)), "ll_one_shot@32x256");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 512 * kKB, 4)), "ll_two_shot@32x256");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 2 * kMB, 4)), "ll128_two_shot@64x512");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 16 * kMB, 4)), "bulk_two_shot@64x512");
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 16 * kMB, 2)), "bulk_one_shot@64x512");
  EXPECT_EQ(to_string(chosen(Collective::kAllGather, 128 * kKB, 4)), "ll_one_shot@32x256");
  EXPECT_EQ(to_string(chosen(Collective::kAllGather, 256 * kKB, 4)), "ll128_one_shot@32x512");
  EXPECT_EQ(to_string(chosen(Collective::kAllGather, 4 * kMB, 4)), "bulk_one_shot@64x512");
  // Without LL128 the protocols next to it take its place.
  EXPECT_EQ(to_string(chosen(Collective::kAllReduce, 128 * kKB, 4, "", false)), "ll_two_shot@32x64");
  EXPECT_EQ(to_string(chosen(Collective::kAllGather, 256 * kKB, 4, "", false)), "bulk_one_shot@16x512");
}

TEST(Choice, PiecesAreLarge) {
  EXPECT_EQ(chosen(Collective::kAllGather, 1 * kMB + 16, 4).piece_bytes, 16'400u);          // 64 blocks: one piece each
  EXPECT_EQ(chosen(Collective::kAllGather, 8 * kMB, 4).piece_bytes, kBulkPieceBytes);       // two
  EXPECT_EQ(chosen(Collective::kAllGather, 16 * kMB, 4).piece_bytes, kBulkPieceBytes / 2);  // eight
  EXPECT_EQ(chosen(Collective::kAllGather, 64 * kMB, 4).piece_bytes, kBulkPieceBytes);
}

// What is shown as forced is what was forced, and not what runs in its place.
TEST(Choice, AForcedKernelThatCannotRunIsNotTaken) {
  const auto taken = [](Collective collective, std::size_t bytes, const char* forced, bool ll128) {
    return takes_forced({collective, DataType::kBfloat16, 4, bytes, kMaxBlocks, ll128}, parse_forced(forced));
  };
  EXPECT_TRUE(taken(Collective::kAllReduce, 1 * kKB, "bulk_two_shot", true));
  EXPECT_EQ(name_of(chosen(Collective::kAllReduce, 1 * kKB, 4, "bulk_two_shot")), "bulk_two_shot");
  EXPECT_FALSE(taken(Collective::kAllGather, 1 * kKB, "bulk_two_shot", true));  // there are no two shots of it
  EXPECT_FALSE(taken(Collective::kAllReduce, 1 * kKB, "ll128_one_shot", false));
  EXPECT_FALSE(taken(Collective::kAllReduce, 64 * kMB, "ll_one_shot", true));
  EXPECT_FALSE(taken(Collective::kAllReduce, 1 * kKB, "copy_engine", true));
  EXPECT_FALSE(taken(Collective::kAllReduce, 1 * kKB, "", true));
}

TEST(Choice, PiecesCanBeForced) {
  EXPECT_EQ(chosen(Collective::kAllGather, 8 * kMB, 4, "bulk_one_shot@32x256x4096").piece_bytes, 4096u);
  EXPECT_EQ(to_string(chosen(Collective::kAllGather, 8 * kMB, 4, "bulk_one_shot@32x256x4096")), "bulk_one_shot@32x256");
  EXPECT_EQ(chosen(Collective::kAllGather, 8 * kMB, 4, "bulk_one_shot@0x0x16").piece_bytes, 16u);
  for (const char* wrong : {"bulk_one_shot@4x64x8", "bulk_one_shot@4x64x65552", "bulk_one_shot@4x64x-16",
                            "bulk_one_shot@4x64x", "bulk_one_shot@4x65x16", "bulk_one_shot@65"}) {
    EXPECT_THROW(static_cast<void>(parse_forced(wrong)), Error) << wrong;
  }
}

}  // namespace
}  // namespace tutti::cuda::test
