// Cores, process descriptors and the hint of the host's identity.
#include "base/process.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
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

TEST(Process, TheMachineIsTheSameInAnotherProcess) {
  const std::string id = machine_id();
  EXPECT_EQ(test::run_in_child([&id] { return machine_id() == id ? 0 : 1; }), 0);
}

constexpr int kNotAllowed = 77;  // to make a namespace

TEST(Process, AMachineWithoutAKnownBootIdHasNoName) {
  const int code = test::run_in_child([] {
    constexpr const char* kBootId = "/proc/sys/kernel/random/boot_id";
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kNotAllowed;
    if (::mount("/dev/null", kBootId, nullptr, MS_BIND, nullptr) != 0) return kNotAllowed;
    return machine_id().empty() ? 0 : 1;
  });
  if (code == kNotAllowed) GTEST_SKIP() << "hiding a file needs root here";
  EXPECT_EQ(code, 0);
}

// As those of two clones with one boot id are.
TEST(Process, MachinesWithOtherAddressesDiffer) {
  const int code = test::run_in_child([] {
    if (::unshare(CLONE_NEWNET) != 0) return kNotAllowed;
    const std::string before = machine_id(), hint = host_hint();
    const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq request{};
    std::memcpy(request.ifr_name, "lo", 3);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(0x0A000001);
    std::memcpy(&request.ifr_addr, &address, sizeof address);
    if (::ioctl(socket.get(), SIOCSIFADDR, &request) != 0) return kNotAllowed;
    if (before.empty()) return 1;
    return host_hint() == hint && machine_id() != before ? 0 : 2;
  });
  if (code == kNotAllowed) GTEST_SKIP() << "a network namespace needs root here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace tutti
