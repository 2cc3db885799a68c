#include "base/rank_map.h"

#include <gtest/gtest.h>

namespace tutti {
namespace {

TEST(RankMap, HostsAreNumberedByTheirLowestRanks) {
  const RankMap map({7, 2, 7, 2, 9});
  EXPECT_EQ(map.ranks(), 5);
  EXPECT_EQ(map.hosts(), 3);
  EXPECT_EQ(map.on(0), (std::vector<int>{0, 2}));
  EXPECT_EQ(map.on(1), (std::vector<int>{1, 3}));
  EXPECT_EQ(map.beside(4), std::vector<int>{4});
  EXPECT_EQ(map.fewest(), 1);
  for (int host = 0; host < map.hosts(); ++host) {
    for (std::size_t place = 0; place < map.on(host).size(); ++place) {
      const int rank = map.on(host)[place];
      EXPECT_EQ(map.host_of(rank), host);
      EXPECT_EQ(map.place_of(rank), static_cast<int>(place));
    }
  }
  EXPECT_TRUE(map.together(1, 3));
  EXPECT_FALSE(map.together(0, 1));
}

TEST(RankMap, OnlyWhereRanksLieCounts) {
  EXPECT_EQ(RankMap({0, 0, 2}), RankMap({5, 5, 1}));
  EXPECT_NE(RankMap({0, 0, 2}), RankMap({0, 1, 0}));
  EXPECT_EQ(RankMap({3, 3}), RankMap::one_host(2));
  EXPECT_TRUE(RankMap::one_host(1).one_host());
}

}  // namespace
}  // namespace tutti
