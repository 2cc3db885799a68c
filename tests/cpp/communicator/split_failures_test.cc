// A rank whose call of the parent fails in a split, when the others have already made that call: they hear of it while
// their part forms. Ranks are threads; the failure is a plug-in's, asking_plugin.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <thread>

#include "bootstrap/ranks.h"
#include "communicator/asking_plugin.h"
#include "communicator/thread_ranks.h"
#include "tutti/group_id.h"

namespace tutti::test {
namespace {

std::array<std::shared_ptr<Communicator>, 3> parents;

bool has_made_it(const Communicator& parent) {
  const Metrics metrics = parent.metrics();
  return std::ranges::any_of(metrics.rows, [](const MetricsRow& row) {
    return row.collective == "all_gather" && row.algorithm.ends_with("failing") && row.calls > 0;
  });
}

// On rank 0, before it fails.
void await_others(int, int) {
  while (!has_made_it(*parents[1]) || !has_made_it(*parents[2])) std::this_thread::yield();
}

TEST(SplitFailures, OfACallThatTheOthersHaveMade) {
  const UserAlgorithmPtr failing = asking_algorithm("create_failing", await_others);
  ASSERT_NE(failing, nullptr);
  MemoryStore store;
  const auto errors = run_threads(3, [&](int rank) {
    CommunicatorOptions options;
    options.timeout = std::chrono::minutes(10);  // the test's watchdog comes first
    options.config.log_level = "error";
    const auto parent = Communicator::create(store, "test", rank, 3, options);
    parents[static_cast<std::size_t>(rank)] = parent;
    parent->set_algorithms({{failing}, {}});
    parent->run(Call{});
    split_group(*parent, 0, rank, "part");
  });
  parents = {};
  EXPECT_NE(errors[0].find("rank 0 has had enough"), std::string::npos) << errors[0];
  for (const std::size_t r : {1, 2})
    EXPECT_EQ(errors[r], "rank 0 gave up while 'part/0' of group 'tutti' was forming: it failed");
}

}  // namespace
}  // namespace tutti::test
