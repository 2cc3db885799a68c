// Host groups of ranks that are processes: what they share, and what happens when one is short of something or dies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <source_location>
#include <stdexcept>

#include "base/mapping.h"
#include "base/process.h"
#include "bootstrap/exchange.h"
#include "bootstrap/host_group_requests.h"
#include "bootstrap/host_leader.h"
#include "bootstrap/limits.h"
#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "net/local_socket.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using test::ranks_of;
using test::request_of;

std::vector<bool> all_good(int size) { return std::vector<bool>(static_cast<std::size_t>(size), true); }

// Expectations of a child process count only through its result: fork_rank reports what is thrown.
void require(bool condition, std::source_location where = std::source_location::current()) {
  if (!condition) throw std::runtime_error("line " + std::to_string(where.line()) + ": not as required");
}

bool closes_on_exec(const UniqueFd& fd) { return (::fcntl(fd.get(), F_GETFD) & FD_CLOEXEC) != 0; }

// A rank with an arena that holds its number; it reads the others' arenas and writes into the segment.
bool share_all(Store& store, int rank, int size) {
  const UniqueFd arena = create_memfd("arena", 4096);
  const Mapping own = Mapping::shared(arena.get(), 4096);
  own.data()[0] = static_cast<std::byte>(rank + 1);
  HostGroupRequest request = request_of(rank, size);
  request.arena_fd = arena.get();
  request.arena_id = static_cast<std::uint64_t>(rank) + 100;
  request.arena_bytes = 4096;
  HostGroup group = form_host_group(store, request);
  require(group.members.size() == static_cast<std::size_t>(size) && group.index == rank);
  require(closes_on_exec(group.segment));
  const Mapping segment = Mapping::shared(group.segment.get(), group.segment_bytes);
  segment.data()[rank * 4096] = static_cast<std::byte>(rank + 1);
  const auto pids = exchange(store, "test", "written", rank, size, std::to_string(::getpid()), kLong);
  for (const HostMember& m : group.members) {
    require(segment.data()[m.rank * 4096] == static_cast<std::byte>(m.rank + 1));
    require(std::to_string(m.pid) == pids[static_cast<std::size_t>(m.rank)]);
    require(m.arena_id == static_cast<std::uint64_t>(m.rank) + 100 && m.arena_bytes == 4096);
    if (m.rank == rank) {
      require(!m.pidfd && !m.arena);
      continue;
    }
    require(m.pidfd && closes_on_exec(m.pidfd) && !pidfd_ended(m.pidfd.get()));
    require(m.arena && closes_on_exec(m.arena));
    require(Mapping::shared(m.arena.get(), 4096).data()[0] == static_cast<std::byte>(m.rank + 1));
  }
  exchange(store, "test", "read", rank, size, "", kLong);
  // The last rank ends first: the others see exactly that one go.
  if (rank == size - 1) return true;
  const int last = group.members.back().pidfd.get();
  pollfd end{last, POLLIN, 0};
  require(::poll(&end, 1, static_cast<int>(kLong.count())) == 1 && pidfd_ended(last));
  return true;
}

class HostGroupProcesses : public testing::TestWithParam<int> {};

TEST_P(HostGroupProcesses, ShareSegmentArenasAndPidfds) {
  const int size = GetParam();
  test::StoreProcess process("secret");
  EXPECT_EQ(test::run_processes(size, [&](int rank) { return share_all(*process.connect(), rank, size); }),
            all_good(size));
}
INSTANTIATE_TEST_SUITE_P(Sizes, HostGroupProcesses, testing::Values(2, 3, 8));

// More than one message can carry: 130 processes have 258 descriptors for each.
TEST(HostGroupProcess, ManyRanksNeedSeveralMessages) {
  constexpr int kSize = 130;
  static_assert(kSize > static_cast<int>(kEntriesPerBatch));
  test::StoreProcess process;
  const auto good = test::run_processes(kSize, [&](int rank) {
    const auto store = process.connect();
    const UniqueFd arena = create_memfd("arena", 4096);
    HostGroupRequest request = request_of(rank, kSize);
    request.timeout = std::chrono::seconds(60);
    request.arena_fd = arena.get();
    request.arena_id = static_cast<std::uint64_t>(rank) + 1;
    const HostGroup group = form_host_group(*store, request);
    require(group.members.size() == kSize);
    for (const HostMember& m : group.members) require(m.rank == rank || (m.arena && m.pidfd));
    exchange(*store, "test", "done", rank, kSize, "", kLong);
    return true;
  });
  EXPECT_EQ(good, all_good(kSize));
}

// Without privileges a user may have no more descriptors under way than RLIMIT_NOFILE: the leader must wait for the
// members to read, and not take it for a failure.
TEST(HostGroupProcess, DescriptorsUnderWayAreLimited) {
  constexpr int kSize = 12;
  test::StoreProcess process;
  const auto good = test::run_processes(kSize, [&](int rank) {
    const auto store = process.connect();
    const UniqueFd arena = create_memfd("arena", 4096);
    // 3 a member for the leader, 2 for each other: far below the 12 * 23 under way.
    const rlimit few{80, 80};
    require(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    require(::geteuid() != 0 || ::setuid(65534) == 0);
    HostGroupRequest request = request_of(rank, kSize);
    request.arena_fd = arena.get();
    request.arena_id = static_cast<std::uint64_t>(rank) + 1;
    require(form_host_group(*store, request).members.size() == kSize);
    exchange(*store, "test", "done", rank, kSize, "", kLong);
    return true;
  });
  EXPECT_EQ(good, all_good(kSize));
}

// Rank 2 has no room for the descriptors that it is given: it is a host of its own, and all three ranks know.
TEST(HostGroupProcess, ARankWithoutDescriptorsIsAHostOfItsOwn) {
  test::StoreProcess process;
  const auto good = test::run_processes(3, [&](int rank) {
    const auto store = process.connect();
    const UniqueFd arena = create_memfd("arena", 4096);
    if (rank == 2) {
      const int lowest_free = ::dup(0);
      ::close(lowest_free);
      // A socket, the leader's pidfd and two more (UBSan's checks open a pipe); the segment, two pidfds and two
      // arenas are five.
      const auto bound = static_cast<rlim_t>(lowest_free + 4);
      const rlimit few{bound, bound};
      require(::setrlimit(RLIMIT_NOFILE, &few) == 0);
    }
    HostGroupRequest request = request_of(rank, 3);
    request.arena_fd = arena.get();
    request.arena_id = static_cast<std::uint64_t>(rank) + 1;
    const HostGroup group = form_host_group(*store, request);
    require(group.host_of == (std::vector<int>{0, 0, 2}));
    require(ranks_of(group) == (rank == 2 ? std::vector<int>{2} : std::vector<int>{0, 1}));
    require(static_cast<bool>(group.segment) == (rank != 2));
    require((group.alone_because.find("ulimit -n") != std::string::npos) == (rank == 2));
    return true;
  });
  EXPECT_EQ(good, all_good(3));
}

// True if this process may make PID namespaces; asked in a child, since the asker's children would land in it.
bool may_unshare_pids() {
  return test::wait_for(test::fork_rank([] { return ::unshare(CLONE_NEWPID) == 0; }));
}

// Ranks 1 and 2 in PID namespaces of their own, like containers: nobody there can name another by number, yet all
// share memory and see each other end.
TEST(HostGroupProcess, NoCommonPidNamespaceIsNeeded) {
  if (!may_unshare_pids()) GTEST_SKIP() << "making PID namespaces needs root here";
  constexpr int kSize = 3;
  test::StoreProcess process;
  const auto good = test::run_processes(kSize, [&](int rank) {
    const auto form = [&] {
      const auto store = process.connect();
      const HostGroup group = form_host_group(*store, request_of(rank, kSize));
      require(group.host_of == std::vector<int>(kSize, 0));
      for (const HostMember& m : group.members) {
        require(m.rank == rank || (m.pidfd && !pidfd_ended(m.pidfd.get())));
        if (rank != 0) require((m.pid != 0) == (m.rank == rank));
      }
      exchange(*store, "test", "done", rank, kSize, "", kLong);
      if (rank == 2) return true;
      pollfd end{group.members.back().pidfd.get(), POLLIN, 0};
      return ::poll(&end, 1, static_cast<int>(kLong.count())) == 1;
    };
    if (rank == 0) return form();
    require(::unshare(CLONE_NEWPID) == 0);
    const pid_t first_of_its_namespace = test::fork_rank(form);
    process.connect();  // lets go of the store, which would wait for this process
    return test::wait_for(first_of_its_namespace);
  });
  EXPECT_EQ(good, all_good(kSize));
}

HostCard card_of(const HostGroupRequest& request) {
  return {"chosen:" + request.host_id,
          "tutti-" + random_secret(),
          random_nonce(),
          request.segment_bytes(request.size),
          {},
          {},
          request.rank};
}

std::vector<HostCard> give_card(Store& store, const HostGroupRequest& request, const HostCard& own) {
  std::vector<HostCard> cards;
  for (const auto& blob : exchange(store, request.id, "host", request.rank, request.size, encode(own), kLong)) {
    cards.push_back(*decode_card(blob));
  }
  return cards;
}

bool peer_lost_names(Store& store, const HostGroupRequest& request, const std::string& name) {
  try {
    form_host_group(store, request);
  } catch (const Error& e) {
    if (e.kind() == ErrorKind::kPeerLost && std::string(e.what()).find(name + " ") != std::string::npos) return true;
    std::fprintf(stderr, "not what was expected: %s\n", e.what());
  }
  return false;
}

// Rank 1 says hello and dies; rank 2 dies before it connects, so that the handshake cannot be over before.
TEST(HostGroupProcess, AMembersDeathIsNoticed) {
  test::StoreProcess process;
  const auto good = test::run_processes(3, [&](int rank) {
    const auto store = process.connect();
    const HostGroupRequest request = request_of(rank, 3, "host");
    if (rank == 0) return peer_lost_names(*store, request, "rank 1");
    const std::vector<HostCard> cards = give_card(*store, request, card_of(request));
    if (rank == 1) {
      Deadline deadline = Deadline::after(kLong);
      const HostContext context{*store, request, cards, {0, 1, 2}, 0, deadline, request.secret, true};
      const UniqueFd socket = new_local_socket();
      require(connect_local(socket.get(), cards[0].socket_name) == SocketStatus::kOk);
      require(send_message(socket.get(), HostPair(context, 1).hello(own_entry(request)), {}) == SocketStatus::kOk);
      ::raise(SIGKILL);
    }
    ::raise(SIGKILL);
    return false;
  });
  EXPECT_TRUE(good[0]);
}

TEST(HostGroupProcess, TheLeadersDeathIsNoticed) {
  test::StoreProcess process;
  const auto good = test::run_processes(2, [&](int rank) {
    const auto store = process.connect();
    const HostGroupRequest request = request_of(rank, 2, "host");
    if (rank == 1) return peer_lost_names(*store, request, "rank 0");
    const HostCard own = card_of(request);
    const UniqueFd listener = listen_local(own.socket_name);
    give_card(*store, request, own);
    pollfd someone{listener.get(), POLLIN, 0};
    require(::poll(&someone, 1, static_cast<int>(kLong.count())) == 1);
    ::raise(SIGKILL);
    return false;
  });
  EXPECT_TRUE(good[1]);
}

}  // namespace
}  // namespace tutti
