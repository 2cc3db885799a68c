// Ranks of a host that are slow to speak to its first, be they many or late: they are waited for, and share its memory.
//
// A rank is held between its connection and its first message, and the first one's clock put forward meanwhile: this
// program's sendmsg(), connect(), poll() and clock_gettime() come before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <ctime>
#include <vector>

#include "bootstrap/forwarding_store.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/memory_store.h"
#include "bootstrap/ranks.h"

namespace {

// A wait ends by what another thread stores; seq_cst throughout: a test, and the order of its steps is easier to
// follow.
void until(const std::atomic<int>& count, int least) {
  for (int now = count.load(); now < least; now = count.load()) count.wait(now);
}

void add_one(std::atomic<int>& count) {
  count.fetch_add(1);
  count.notify_all();
}

thread_local bool is_member = false, is_leader = false, in_store = false;
std::atomic<int> connected{0}, turns{0}, may_speak{0};
std::atomic<std::int64_t> ahead_s{0};

template <class Call>
Call next_of(const char* name) {
  return reinterpret_cast<Call>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

#define TUTTI_NEXT(name) static const auto next = next_of<decltype(&::name)>(#name)

// NOLINTBEGIN: the C library's interface
extern "C" {
__attribute__((visibility("default"))) int connect(int fd, const sockaddr* address, socklen_t length) {
  TUTTI_NEXT(connect);
  const int result = next(fd, address, length);
  const int error = errno;
  if (is_member && result == 0) add_one(connected);
  errno = error;
  return result;
}

__attribute__((visibility("default"))) ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  TUTTI_NEXT(sendmsg);
  if (is_member) until(may_speak, 1);
  return next(fd, message, flags);
}

__attribute__((visibility("default"))) int poll(pollfd* fds, nfds_t count, int timeout) {
  TUTTI_NEXT(poll);
  const int result = next(fds, count, timeout);
  const int error = errno;
  if (is_leader) add_one(turns);
  errno = error;
  return result;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, timespec* time) {
  TUTTI_NEXT(clock_gettime);
  const int result = next(clock, time);
  if (clock == CLOCK_MONOTONIC && is_leader && !in_store) time->tv_sec += ahead_s.load();
  return result;
}
}
// NOLINTEND

namespace tutti {
namespace {

// Waits by the kernel's clock, which is not put forward.
class TimedStore final : public test::ForwardingStore {
 public:
  using ForwardingStore::ForwardingStore;
  std::string get(std::string_view key, std::chrono::milliseconds timeout) override {
    const Here here;
    return below_.get(key, timeout);
  }
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, std::chrono::milliseconds timeout) override {
    const Here here;
    return below_.multi_get(keys, timeout);
  }

 private:
  struct Here {
    Here() { in_store = true; }
    ~Here() { in_store = false; }
  };
};

// The hosts that the ranks find, where all have connected before any of them speaks, and the leader has looked at
// them since, `later_s` seconds later.
std::vector<int> hosts_of_slow(int ranks, std::int64_t later_s) {
  connected = turns = may_speak = 0;
  ahead_s = 0;
  MemoryStore memory;
  TimedStore store(memory);
  std::vector<int> hosts(static_cast<std::size_t>(ranks), -1);
  const auto errors = test::run_threads(ranks + 1, [&](int rank) {
    if (rank == ranks) {  // who makes them slow
      until(connected, ranks - 1);
      ahead_s = later_s;
      // Two whole turns: in what was under way all were perhaps not there yet.
      until(turns, turns.load() + 3);
      add_one(may_speak);
      return;
    }
    is_leader = rank == 0;
    is_member = rank != 0;
    HostGroupRequest request = test::request_of(rank, ranks, "a host");
    request.timeout = std::chrono::hours(24);
    const HostGroup group = form_host_group(store, request);
    hosts[static_cast<std::size_t>(rank)] = group.host_of[static_cast<std::size_t>(rank)];
  });
  ahead_s = 0;
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(ranks) + 1));
  return hosts;
}

TEST(SlowRanks, ManyAreWaitedFor) { EXPECT_EQ(hosts_of_slow(100, 0), std::vector<int>(100, 0)); }

TEST(SlowRanks, AreWaitedForHoweverLongItTakes) { EXPECT_EQ(hosts_of_slow(3, 3600), std::vector<int>(3, 0)); }

}  // namespace
}  // namespace tutti
