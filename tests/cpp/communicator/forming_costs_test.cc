// What the forming of a whole group costs its store and the network, of 2 to 512 ranks as threads and of 64 as
// processes: keys, bytes and connections. None may grow faster than n log n but the bytes that are read, since every
// rank reads what all say. Groups of the same ranks and parts of a group ask nothing of the store that the first was
// given.
//
// Connections are counted where the library makes them: this program's connect() comes before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <atomic>
#include <barrier>
#include <bit>
#include <cerrno>
#include <memory>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/counting_store.h"
#include "bootstrap/ranks.h"
#include "bootstrap/store_process.h"
#include "communicator/group_bootstrap.h"
#include "communicator/subgroup.h"
#include "communicator/thread_ranks.h"
#include "support/sanitized.h"
#include "tutti/group_id.h"

namespace {

// In memory that children share.
struct Costs : tutti::test::StoreCosts {
  std::atomic<std::size_t> connections{0};
};

std::atomic<Costs*> counted{nullptr};

// Whether this thread has not connected there before. A leader looks again and again whether those it awaits still
// listen, as long as they take to come.
bool is_new(std::string_view address) {
  thread_local std::set<std::string, std::less<>> before;
  return before.emplace(address).second;
}

}  // namespace

// NOLINTNEXTLINE: the C library's interface
extern "C" __attribute__((visibility("default"))) int connect(int fd, const sockaddr* address, socklen_t length) {
  static const auto next = reinterpret_cast<int (*)(int, const sockaddr*, socklen_t)>(::dlsym(RTLD_NEXT, "connect"));
  const int result = next(fd, address, length);
  const int error = errno;
  // relaxed: set while there are no ranks, and read when they are joined
  Costs* const costs = counted.load(std::memory_order_relaxed);
  const bool made = result == 0 || error == EINPROGRESS;  // others are tried again
  const std::string_view name(reinterpret_cast<const char*>(address), length);
  if (costs != nullptr && made && (address->sa_family != AF_UNIX || is_new(name))) {
    costs->connections.fetch_add(1, std::memory_order_relaxed);
  }
  errno = error;
  return result;
}

namespace tutti::test {
namespace {

class Counted {
 public:
  Counted()
      : costs_(new (::mmap(nullptr, sizeof(Costs), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Costs) {
    counted.store(costs_, std::memory_order_relaxed);
  }
  ~Counted() {
    counted.store(nullptr, std::memory_order_relaxed);
    ::munmap(costs_, sizeof(Costs));
  }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;

  Costs& operator*() const { return *costs_; }
  Costs* operator->() const { return costs_; }

 private:
  Costs* const costs_;
};

CommunicatorOptions options_of(int rank, int ranks_per_host) {
  CommunicatorOptions options;
  options.timeout = std::chrono::minutes(2);
  options.config.log_level = "error";
  options.config.host_id = "host " + std::to_string(rank / ranks_per_host);
  return options;
}

std::size_t read(const std::atomic<std::size_t>& count) { return count.load(std::memory_order_relaxed); }

struct Layout {
  int ranks, per_host;
};

// One exchange, and one more of several hosts. A rank writes its blob, and of more than 16 ranks rank 0 all blobs once
// more: those read two keys, fewer read all. Of several hosts of several ranks each's first writes who it has met,
// which all others read; of more than 16 such hosts rank 0 does, and writes all once more. Each connects to its host's
// first, and that one may look after each. The barrier on several hosts is of log n steps, in each of which both ends
// of a pair may dial.
void expect_small(const Costs& costs, const Layout& layout, std::size_t connections_to_stores = 0) {
  const auto n = static_cast<std::size_t>(layout.ranks),
             hosts = static_cast<std::size_t>(layout.ranks / layout.per_host);
  const std::size_t exchanges = hosts > 1 ? 2 : 1, steps = std::bit_width(hosts - 1);
  const std::size_t meetings = hosts > 1 && layout.per_host > 1 ? hosts : 0;
  const bool passed_on = meetings > 16;
  SCOPED_TRACE(std::to_string(n) + " ranks on " + std::to_string(hosts) + " hosts");
  EXPECT_LE(read(costs.keys_written), exchanges * (n + 1) + meetings + (passed_on ? 1 : 0));
  EXPECT_LE(read(costs.keys_read),
            exchanges * n * std::min<std::size_t>(n, 16) + (passed_on ? n + meetings : n * meetings));
  EXPECT_LE(read(costs.bytes_written), 1000 * n);
  EXPECT_LE(read(costs.bytes_read), 500 * n * n);  // all get all
  EXPECT_LE(read(costs.connections), connections_to_stores + 2 * n + 2 * n * steps);
}

// First: children of a process that has ranks are none.
TEST(FormingCosts, OfRanksAsProcesses) {
  for (const Layout& layout : {Layout{64, 64}, Layout{64, 16}, Layout{64, 1}}) {
    Counted costs;
    StoreProcess stores;
    const std::vector<bool> good = run_processes(layout.ranks, [&](int rank) {
      const auto below = stores.connect();
      CountingStore store(*below, *costs);
      Communicator::create(store, "group", rank, layout.ranks, options_of(rank, layout.per_host))->run(Call{});
      return true;
    });
    EXPECT_EQ(good, std::vector<bool>(static_cast<std::size_t>(layout.ranks), true));
    expect_small(*costs, layout, static_cast<std::size_t>(layout.ranks));
  }
}

// With 512 ranks the bounds of n^2 would be missed by far: were each to connect to each, or to read each's keys.
TEST(FormingCosts, OfRanksAsThreads) {
  const std::vector<Layout> layouts = {{2, 2},  {16, 16}, {17, 17}, {128, 128}, {512, 512}, {2, 1},
                                       {16, 1}, {64, 1},  {64, 8},  {128, 2},   {512, 64}};
  for (const Layout& layout : layouts) {
    if (kSanitized && layout.ranks > 128) continue;
    Counted costs;
    MemoryStore memory;
    const auto errors = run_threads(layout.ranks, [&](int rank) {
      CountingStore store(memory, *costs);
      Communicator::create(store, "group", rank, layout.ranks, options_of(rank, layout.per_host))->run(Call{});
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(layout.ranks)));
    expect_small(*costs, layout);
  }
}

// Parts of a group, and parts of those: the store of the first is asked for nothing, and is not there any more.
TEST(FormingCosts, OfPartsAreNoneToTheStore) {
  for (const Layout& layout : {Layout{8, 8}, Layout{8, 2}, Layout{64, 16}}) {
    auto memory = std::make_unique<MemoryStore>();
    Counted costs;
    std::barrier formed(layout.ranks, [&]() noexcept {
      expect_small(*costs, layout);
      memory.reset();
    });
    const auto errors = run_threads(layout.ranks, [&](int rank) {
      std::optional<CountingStore> store(std::in_place, *memory, *costs);
      const auto group = Communicator::create(*store, "group", rank, layout.ranks, options_of(rank, layout.per_host));
      group->run(Call{});
      store.reset();
      formed.arrive_and_wait();
      const auto part = split_group(*group, rank % 2, rank, "half");
      EXPECT_EQ(part->size(), layout.ranks / 2);
      split_group(*part, part->rank() % 2, 0, "quarter")->run(Call{});
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(layout.ranks)));
  }
}

// Over the group that its ranks are in: up to 16 ranks say all to each other, and of more each speaks with the first.
TEST(FormingCosts, OfASubgroup) {
  for (const Layout& layout : {Layout{16, 1}, Layout{17, 1}, Layout{64, 1}, Layout{64, 8}, Layout{128, 128}}) {
    MemoryStore memory;
    std::optional<Counted> costs;
    std::barrier formed(layout.ranks, [&]() noexcept { costs.emplace(); });
    const auto errors = run_threads(layout.ranks, [&](int rank) {
      const CommunicatorOptions options = options_of(rank, layout.per_host);
      const auto group = Communicator::create(memory, "group", rank, layout.ranks, options);
      group->run(Call{});
      formed.arrive_and_wait();
      form_in(*group, all_ranks(layout.ranks), "part", [&] { return options; })->run(Call{});
    });
    EXPECT_EQ(errors, std::vector<std::string>(static_cast<std::size_t>(layout.ranks)));
    const auto n = static_cast<std::size_t>(layout.ranks);
    expect_small(**costs, layout, n <= 16 ? n * (n - 1) : 2 * n);
  }
}

}  // namespace
}  // namespace tutti::test
