// Cores, process descriptors and the hint of the host's identity.
#include "base/process.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "support/child_process.h"

namespace tutti {
namespace {

TEST(Process, UsableCoresFollowTheAffinity) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), CPU_COUNT(&before));
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(usable_cores(), 1);
  ::sched_setaffinity(0, sizeof(before), &before);
}

TEST(Process, ProcessesThatAreBoundApartUseTheirCoresTogether) {
  cpu_set_t before;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(before), &before), 0);
  if (CPU_COUNT(&before) < 2) GTEST_SKIP() << "needs two cores";
  std::vector<cpu_set_t> single;
  for (int core = 0; core < CPU_SETSIZE && single.size() < 2; ++core) {
    if (!CPU_ISSET(core, &before)) continue;
    CPU_ZERO(&single.emplace_back());
    CPU_SET(core, &single.back());
  }
  test::Gate gate;
  test::ChildProcess child([&gate] { return gate.wait() ? 0 : 1; });
  ASSERT_EQ(::sched_setaffinity(child.pid(), sizeof(cpu_set_t), &single[1]), 0);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(cpu_set_t), &single[0]), 0);
  const pid_t others[] = {0, ::getpid(), child.pid()};
  EXPECT_EQ(usable_cores(), 1);
  const int together = usable_cores(others);
  ASSERT_EQ(::sched_setaffinity(0, sizeof(before), &before), 0);
  EXPECT_EQ(together, std::min(2, usable_cores()));  // the quota may allow less than the affinity
  gate.open();
}

TEST(Process, TheLastCacheHasASize) {
  EXPECT_GE(last_cache_bytes(), std::size_t{64} << 10);
  EXPECT_LE(last_cache_bytes(), std::size_t{4} << 30);
}

TEST(Process, APidfdTellsTheEndOfAProcess) {
  test::Gate gate;
  test::ChildProcess child([&gate] { return gate.wait() ? 0 : 1; });
  const UniqueFd pidfd = open_pidfd(child.pid());
  if (!pidfd) GTEST_SKIP() << "no pidfd_open here";
  EXPECT_FALSE(pidfd_ended(pidfd.get()));
  ::kill(child.pid(), SIGKILL);
  pollfd entry{pidfd.get(), POLLIN, 0};
  EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  EXPECT_TRUE(pidfd_ended(pidfd.get()));
  EXPECT_EQ(child.join(), 1000 + SIGKILL);
  EXPECT_TRUE(pidfd_ended(pidfd.get())) << "also after the process was reaped";
}

TEST(Process, NoPidfdOfAProcessThatIsNotThere) {
  EXPECT_FALSE(open_pidfd(-1));
  EXPECT_FALSE(pidfd_ended(-1)) << "nothing is known of a bad descriptor";
}

TEST(Process, TheHostHintIsTheSameInAnotherProcess) {
  const std::string hint = host_hint();
  EXPECT_GT(hint.size(), 3u);
  EXPECT_EQ(hint.find('\n'), std::string::npos);
  EXPECT_EQ(test::run_in_child([&hint] { return host_hint() == hint ? 0 : 1; }), 0);
}

}  // namespace
}  // namespace tutti
