// The wait that looks again and again: it finds what comes, ends in time, and asks whether it is to go on.
#include "bootstrap/look.h"

#include <gtest/gtest.h>

#include "bootstrap/limits.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using std::chrono::milliseconds;

void ask_nobody() {}

TEST(Look, FindsWhatComes) {
  int looks = 0;
  EXPECT_TRUE(look_for([&] { return ++looks == 4; }, ask_nobody, kLong));
  EXPECT_EQ(looks, 4);
}

TEST(Look, FindsWhatIsThereWithoutTime) {
  EXPECT_TRUE(look_for([] { return true; }, ask_nobody, milliseconds(0)));
  EXPECT_FALSE(look_for([] { return false; }, ask_nobody, milliseconds(0)));
}

// At 0, 1, 3, 7, 15, 31, 47 and 60 ms at the earliest: a store is not asked without end.
TEST(Look, PausesGrowUpToTheLongest) {
  int looks = 0;
  const auto there = [&] {
    ++looks;
    return false;
  };
  EXPECT_FALSE(look_for(there, ask_nobody, milliseconds(60)));
  EXPECT_GE(looks, 2);
  EXPECT_LE(looks, 9);
}

// The eighth pause, of 128 ms, is cut in three.
TEST(Look, AsksWithinLongPauses) {
  int looks = 0, asked = 0;
  const auto there = [&] { return ++looks == 9; };
  const auto ask = [&] { asked += looks == 8; };
  EXPECT_TRUE(look_for(there, ask, kLong, milliseconds(500)));
  EXPECT_EQ(asked, 3);
}

TEST(Look, EndsByWhatTheAskedThrows) {
  int looks = 0;
  const auto there = [&] {
    ++looks;
    return false;
  };
  const auto ask = [&] {
    if (looks == 2) throw_error(ErrorKind::kAborted, "given up");
  };
  EXPECT_THROW(look_for(there, ask, kLong), Error);
  EXPECT_EQ(looks, 2);
}

}  // namespace
}  // namespace tutti
