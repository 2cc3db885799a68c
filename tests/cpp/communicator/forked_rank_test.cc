// A forked child of a rank has copies of the rank's group and of its calls. They are the parent's: whatever the child
// does to them is refused or does nothing, and the parent goes on.
#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <vector>

#include "bootstrap/memory_store.h"
#include "communicator/calls.h"
#include "communicator/thread_ranks.h"
#include "support/child_process.h"

namespace tutti::test {
namespace {

using std::chrono::milliseconds;

// What a child may wait for what it must not even begin.
constexpr milliseconds kChildsPatience(2'000);

bool refused(const std::function<void()>& call) {
  const Error error = error_of(call);
  return error.kind() == ErrorKind::kUnsupported &&
         std::string(error.what()).find("belongs to the parent") != std::string::npos;
}

// The number of the first call that is not refused, in a child; else 0.
int make_every_call(Communicator& c, std::vector<float>& x) {
  MemoryStore store;
  int made = 0;
  for (const std::function<void()>& call : std::vector<std::function<void()>>{
           [&] { c.run(all_reduce(x), kChildsPatience); },
           [&] { c.submit(all_reduce(x), kChildsPatience); },
           [&] { c.send(x.data(), 1, DataType::kFloat32, 1, 0, kChildsPatience); },
           [&] { c.recv(x.data(), 1, DataType::kFloat32, 1, 0, kChildsPatience); },
           [&] { c.isend(x.data(), 1, DataType::kFloat32, 1, 0); },
           [&] { c.irecv(x.data(), 1, DataType::kFloat32, 1, 0); },
           [&] { c.monitored_barrier(kChildsPatience, false); },
           [&] { c.shrink(store, "smaller", kChildsPatience, nullptr); },
       }) {
    ++made;
    if (!refused(call)) return made;
  }
  return 0;
}

// Rank 0 forks with a call under way that the others join when the child has ended.
void fork_rank_0(int hosts, const std::function<int(Communicator&, Work&)>& child) {
  World world;
  world.size = 3;
  if (hosts > 1) world.host_of = [](int rank) { return "host" + std::to_string(rank % 2); };
  std::promise<void> ended;
  const std::shared_future<void> over = ended.get_future().share();
  run_ranks(world, [&](Communicator& c) {
    std::vector<float> x(5, 1), y(5, 1);
    c.run(all_reduce(x));
    if (c.rank() == 0) {
      const WorkPtr work = c.submit(all_reduce(y));
      EXPECT_EQ(run_in_child([&] { return child(c, *work); }), 0);
      ended.set_value();
      work->wait();
    } else {
      ASSERT_EQ(over.wait_for(std::chrono::minutes(2)), std::future_status::ready);
      c.run(all_reduce(y));
    }
    EXPECT_EQ(y, std::vector<float>(5, 3));
    c.run(all_reduce(x));
    EXPECT_EQ(x, std::vector<float>(5, 9));
  });
}

class ForkedRank : public testing::TestWithParam<int> {};

TEST_P(ForkedRank, MakesNoCallOfItsParents) {
  fork_rank_0(GetParam(), [](Communicator& c, Work&) {
    std::vector<float> x(5, 1);
    return make_every_call(c, x);
  });
}

TEST_P(ForkedRank, AwaitsNoCallOfItsParents) {
  fork_rank_0(GetParam(), [](Communicator&, Work& work) {
    if (work.done()) return 1;
    if (!refused([&] { work.wait(kChildsPatience); })) return 2;
    return refused([&] { work.on_done([](Work&) {}); }) ? 0 : 3;
  });
}

TEST_P(ForkedRank, EndsNothingOfItsParents) {
  fork_rank_0(GetParam(), [](Communicator& c, Work&) {
    c.abort("the child's");
    c.shutdown();
    Communicator::finish_all(kChildsPatience);
    return 0;
  });
}

INSTANTIATE_TEST_SUITE_P(Hosts, ForkedRank, testing::Values(1, 2));

}  // namespace
}  // namespace tutti::test
