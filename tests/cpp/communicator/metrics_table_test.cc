// The metrics: exact counts in the right rows, medians to a factor, and snapshots at any time.
#include "communicator/metrics_table.h"

#include <gtest/gtest.h>

#include <array>
#include <thread>

namespace tutti::test {
namespace {

constexpr int kAllReduce = static_cast<int>(Collective::kAllReduce);

TEST(MetricsTable, SizeClassesEndWhereTheyAreNamed) {
  const std::array<std::size_t, 7> limits = {64, 1024, 8192, 65536, 512 << 10, 4 << 20, 64 << 20};
  const std::array<const char*, 8> names = {"<=64B", "<=1KB", "<=8KB", "<=64KB", "<=512KB", "<=4MB", "<=64MB", ">64MB"};
  EXPECT_EQ(size_class(0), 0);
  for (std::size_t i = 0; i < limits.size(); ++i) {
    EXPECT_EQ(size_class(limits[i]), static_cast<int>(i));
    EXPECT_EQ(size_class(limits[i] + 1), static_cast<int>(i) + 1);
  }
  MetricsTable table;
  for (const std::size_t limit : limits) table.record(kAllReduce, limit, "ring", -1, 0);
  table.record(kAllReduce, limits.back() + 1, "ring", -1, 0);
  const Metrics metrics = table.snapshot();
  ASSERT_EQ(metrics.rows.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(metrics.rows[i].size_class, names[i]);
}

TEST(MetricsTable, CountsByCallClassAndAlgorithm) {
  MetricsTable table;
  table.record(kAllReduce, 32, "slots", -1, 0);
  table.record(kAllReduce, 8, "slots", 100, 40);
  table.record(kAllReduce, 16, "ring", 300, 500);
  table.record(kCollectiveCount, 8, "message", -1, 0);
  table.record(kCollectiveCount + 1, 9, "message", -1, 0);
  table.count_mapped();
  table.count_error();
  table.count_error();

  const Metrics metrics = table.snapshot();
  ASSERT_EQ(metrics.rows.size(), 4U);
  EXPECT_EQ(metrics.mapped_calls, 1U);
  EXPECT_EQ(metrics.errors, 2U);
  for (const MetricsRow& row : metrics.rows) {
    if (row.algorithm == "slots") {
      EXPECT_EQ(row.calls, 2U);
      EXPECT_EQ(row.bytes, 40U);
      EXPECT_EQ(row.timed_calls, 1U);
      EXPECT_EQ(row.total_ns, 100U);
      EXPECT_EQ(row.wait_ns, 40U);
    } else if (row.algorithm == "ring") {
      EXPECT_EQ(row.wait_ns, 300U) << "no more waiting than the call took";
    } else {
      EXPECT_TRUE(row.collective == "send" || row.collective == "recv") << row.collective;
      EXPECT_EQ(row.bytes, row.collective == "send" ? 8U : 9U);
      EXPECT_EQ(row.timed_calls, 0U);
      EXPECT_EQ(row.p50_ns, 0U);
    }
  }
}

TEST(MetricsTable, MedianIsRightToAFactor) {
  for (const std::int64_t median : {std::int64_t{1}, std::int64_t{700}, std::int64_t{5'000'000'000}}) {
    MetricsTable table;
    for (int i = 0; i < 5; ++i) table.record(kAllReduce, 8, "slots", median, 0);
    for (int i = 0; i < 2; ++i) table.record(kAllReduce, 8, "slots", 1, 0);
    for (int i = 0; i < 2; ++i) table.record(kAllReduce, 8, "slots", 200 * median, 0);
    const MetricsRow row = table.snapshot().rows.at(0);
    EXPECT_LE(static_cast<double>(row.p50_ns), 1.2 * static_cast<double>(median));
    EXPECT_GE(1.2 * static_cast<double>(row.p50_ns), static_cast<double>(median));
  }
}

TEST(MetricsTable, TimesBeyondTheLastBucketAreKept) {
  MetricsTable table;
  constexpr std::int64_t kHour = 3'600'000'000'000;
  table.record(kAllReduce, 8, "slots", kHour, 0);
  const MetricsRow row = table.snapshot().rows.at(0);
  EXPECT_EQ(row.total_ns, static_cast<std::uint64_t>(kHour));
  EXPECT_GT(row.p50_ns, 60'000'000'000U) << "it says at least: very long";
}

TEST(MetricsTable, ResetForgetsCountsAndLeavesThePlaces) {
  MetricsTable table;
  table.record(kAllReduce, 8, "slots", 1000, 10);
  table.count_mapped();
  table.count_error();
  table.reset();
  EXPECT_TRUE(table.snapshot().rows.empty());
  EXPECT_EQ(table.snapshot().mapped_calls, 0U);
  EXPECT_EQ(table.snapshot().errors, 0U);
  table.record(kAllReduce, 8, "slots", 10, 0);
  const MetricsRow row = table.snapshot().rows.at(0);
  EXPECT_EQ(row.calls, 1U);
  EXPECT_LT(row.p50_ns, 100U) << "the histogram starts anew too";
}

TEST(MetricsTable, TimesAllLargeCallsAndASampleOfSmallOnes) {
  MetricsTable table;
  int timed = 0;
  for (int i = 0; i < 640; ++i) timed += table.wants_time(8191) ? 1 : 0;
  EXPECT_EQ(timed, 10);
  for (int i = 0; i < 64; ++i) EXPECT_TRUE(table.wants_time(8192));
  EXPECT_TRUE(MetricsTable().wants_time(1)) << "a program of few calls sees a time as well";
}

// Rows are added and counted by one thread while another looks.
TEST(MetricsTable, SnapshotsSeeCountsGrow) {
  static constexpr std::array<const char*, 4> kNames = {"slots", "staged", "mapped", "ring"};
  constexpr std::uint64_t kCalls = 20'000;
  MetricsTable table;
  std::thread calls([&] {
    for (std::uint64_t i = 0; i < kCalls; ++i) {
      const int call = static_cast<int>(i) % MetricsTable::kCalls;
      table.record(call, i, kNames[i % kNames.size()], static_cast<std::int64_t>(i), 0);
    }
  });
  std::uint64_t before = 0;
  while (before < kCalls) {
    std::uint64_t now = 0;
    for (const MetricsRow& row : table.snapshot().rows) now += row.calls;
    ASSERT_GE(now, before);
    before = now;
  }
  calls.join();
  EXPECT_EQ(before, kCalls);
}

}  // namespace
}  // namespace tutti::test
