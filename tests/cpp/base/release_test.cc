// What ends with its process alone: in a forked child nothing is destroyed.
#include "base/release.h"

#include <gtest/gtest.h>

#include <memory>

#include "support/child_process.h"

namespace tutti {
namespace {

class Counted {
 public:
  explicit Counted(int& ended) : ended_(ended) {}
  ~Counted() { ++ended_; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

 private:
  int& ended_;
};

TEST(Release, DestroysWhereItWasMadeOnly) {
  int ended = 0;
  { const std::unique_ptr<Counted, Release> here(new Counted(ended)); }
  EXPECT_EQ(ended, 1);
  std::unique_ptr<Counted, Release> parents(new Counted(ended));
  EXPECT_EQ(test::run_in_child([&] {
              parents.reset();
              return ended == 1 ? 0 : 1;
            }),
            0);
  parents.reset();
  EXPECT_EQ(ended, 2);
}

TEST(Release, WhatHasAnOwnDeleterToo) {
  ASSERT_FALSE(forked_child());  // from here on children know what they are
  int ended = 0;
  std::shared_ptr<Counted> parents = released_by_owner(std::make_shared<Counted>(ended));
  EXPECT_EQ(test::run_in_child([&] {
              parents.reset();
              return ended == 0 ? 0 : 1;
            }),
            0);
  parents.reset();
  EXPECT_EQ(ended, 1);
}

// As a destructor has it, whose members end behind it.
TEST(Release, WhatAChildLeavesIsNotDestroyed) {
  int ended = 0;
  auto one = std::make_shared<Counted>(ended), other = std::make_shared<Counted>(ended);
  EXPECT_FALSE(left_by_child(one, other));
  EXPECT_NE(one, nullptr);
  EXPECT_EQ(test::run_in_child([&] {
              if (!left_by_child(one, other)) return 1;
              one.reset();
              other.reset();
              return ended == 0 ? 0 : 2;
            }),
            0);
  one.reset();
  EXPECT_EQ(ended, 1);
}

}  // namespace
}  // namespace tutti
