// How many of a GPU's blocks run a thread block of a plan together.
#include "executor/cuda/cluster_size.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace tutti::executor {
namespace {

// So many thread blocks, each of which copies `bytes` in `pieces` parts with a join before each.
DeviceRecords copies(int blocks, std::uint64_t bytes, std::uint32_t pieces = 1) {
  DeviceRecords records;
  for (int b = 0; b < blocks; ++b) {
    DeviceBlock block;
    block.first = static_cast<std::uint32_t>(records.ops.size());
    block.count = pieces;
    for (std::uint32_t i = 0; i < pieces; ++i) {
      DeviceOp op;
      op.code = DeviceCode::kCopy;
      op.joins = 1;
      op.sources = op.targets = 1;
      op.bytes = bytes / pieces;
      records.ops.push_back(op);
    }
    records.blocks.push_back(block);
  }
  return records;
}

TEST(ClusterSize, FewBytesAreForOneBlock) {
  for (const std::uint64_t bytes : {0UL, 16UL, 1UL << 10, 16UL << 10, 32UL << 10}) {
    EXPECT_EQ(cluster_of(copies(1, bytes), 8), 1) << bytes;
  }
}

TEST(ClusterSize, ManyBytesAreForAsManyAsThereMayBe) {
  for (const int most : {1, 2, 4, 8}) EXPECT_EQ(cluster_of(copies(1, 1 << 20), most), most);
  EXPECT_EQ(cluster_of(copies(1, 1 << 20), 6), 4);
  EXPECT_EQ(cluster_of(copies(1, 64 << 20), 64), 8);
}

TEST(ClusterSize, APlanOfManyBlocksDoesNotTakeTheWholeGpu) {
  EXPECT_EQ(cluster_of(copies(4, 1 << 20), 8), 8);
  EXPECT_EQ(cluster_of(copies(8, 1 << 20), 8), 4);
  EXPECT_EQ(cluster_of(copies(32, 1 << 20), 8), 1);
  EXPECT_EQ(cluster_of(copies(100, 1 << 20), 8), 1);
}

TEST(ClusterSize, WhatJoinsOftenForFewBytesEachStaysWithOne) {
  EXPECT_GT(cluster_of(copies(1, 256 << 10, 1), 8), 1);
  EXPECT_EQ(cluster_of(copies(1, 256 << 10, 64), 8), 1);
}

TEST(ClusterSize, TheBlockWithMostToDoDecides) {
  DeviceRecords records = copies(2, 1 << 10);
  records.ops[1].bytes = 1 << 20;
  EXPECT_EQ(cluster_of(records, 8), 8);
}

TEST(ClusterSize, PacketsAreTwiceTheirPayload) {
  DeviceRecords plain = copies(1, 40 << 10), packets = plain;
  packets.ops[0].code = DeviceCode::kPack;
  EXPECT_EQ(cluster_of(plain, 8), 1);
  EXPECT_GT(cluster_of(packets, 8), 1);
}

}  // namespace
}  // namespace tutti::executor
