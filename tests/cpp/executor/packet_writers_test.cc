// Whose packets are awaited, as an error names them.
#include "executor/program/packet_writers.h"

#include <gtest/gtest.h>

#include <vector>

#include "executor/executor_plans.h"

namespace tutti::executor {
namespace {

using Ranks = std::vector<std::int32_t>;

// There rank r packs its part for rank p into p's chunk r, and its sum into chunk 3 + r.
TEST(PacketWriters, AreThoseThatThePlanNames) {
  const plan::Plan plan = plan::packet_two_step_all_reduce(3);
  for (const std::int32_t writer : {0, 2}) {
    EXPECT_EQ(packet_writers(plan, 1, writer, 1), Ranks{writer});
    EXPECT_EQ(packet_writers(plan, 1, 3 + writer, 1), Ranks{writer});
  }
  EXPECT_TRUE(packet_writers(plan, 1, 1, 1).empty()) << "nobody packs for himself";
  EXPECT_EQ(packet_writers(plan, 1, 0, 3), (Ranks{0, 2}));
  EXPECT_TRUE(packet_writers(plan, 1, 6, 5).empty());
}

TEST(PacketWriters, PlainWritesAreNotMeant) {
  const plan::Plan plan = plan::two_step_all_reduce(3);
  EXPECT_TRUE(packet_writers(plan, 0, 0, 1000).empty());
}

}  // namespace
}  // namespace tutti::executor
