// Descriptors that end with their process, whatever it has forked.
#include "base/unforked_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <latch>
#include <thread>
#include <vector>

#include "support/child_process.h"

namespace tutti {
namespace {

UnforkedFd open_null() {
  return UnforkedFd::opened_by([] { return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); });
}

bool is_open(int fd) { return ::fcntl(fd, F_GETFD) != -1; }

TEST(UnforkedFd, AChildHasNoCopyAndTheParentKeepsItsOwn) {
  std::vector<UnforkedFd> held;  // which moves them as it grows
  std::vector<int> numbers;
  for (int i = 0; i < 9; ++i) numbers.push_back(held.emplace_back(open_null()).get());
  held[4].reset();
  held[0] = std::move(held[8]);
  held[5] = UnforkedFd();
  const UniqueFd others(::open("/dev/null", O_RDONLY | O_CLOEXEC));  // at the lowest number that has come free
  EXPECT_EQ(others.get(), numbers[0]);
  EXPECT_EQ(held[0].get(), numbers[8]);
  const int code = test::run_in_child([&] {
    for (std::size_t i = 0; i < held.size(); ++i) {
      if (held[i] || (i > 0 && is_open(numbers[i]))) return 1;
    }
    if (!is_open(others.get())) return 2;
    held.clear();
    const UnforkedFd own = open_null();
    const int number = own.get();
    // Likewise in a child of the child.
    return test::run_in_child([&] { return is_open(number) ? 1 : 0; }) == 0 && is_open(number) ? 0 : 3;
  });
  EXPECT_EQ(code, 0);
  for (const std::size_t i : {1, 2, 3, 6, 7, 8}) EXPECT_TRUE(is_open(numbers[i])) << i;
  held.clear();
  for (const int number : numbers) EXPECT_EQ(is_open(number), number == others.get());
}

// The fork waits for the other thread in vain. Nobody finishes in the child what that has begun.
TEST(UnforkedFd, AChildThatWasForkedInTheMidstOfOneGoesOn) {
  UnforkedFd before = open_null();
  std::latch opening(1), forked(1);
  std::thread other([&] {
    const UnforkedFd slow = UnforkedFd::opened_by([&] {
      opening.count_down();
      forked.wait();
      return UniqueFd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    });
  });
  opening.wait();
  const int code = test::run_in_child([&] {
    before.reset();
    UnforkedFd own = open_null();
    own = open_null();
    return own && is_open(own.get()) ? 0 : 1;
  });
  forked.count_down();
  other.join();
  EXPECT_EQ(code, 0);
  EXPECT_TRUE(is_open(before.get()));
}

TEST(UnforkedFd, WhatCannotBeOpenedLeavesItsReason) {
  errno = 0;
  EXPECT_FALSE(UnforkedFd::opened_by([] { return UniqueFd(::open("/no such file", O_RDONLY)); }));
  EXPECT_EQ(errno, ENOENT);
}

}  // namespace
}  // namespace tutti
