// A process that is killed in a call of two levels. Apart from tests whose ranks are threads: those leave Tutti in a
// state that no child can use.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "bootstrap/store_process.h"
#include "communicator/two_levels.h"
#include "support/child_process.h"

namespace tutti::test {
namespace {

// In a process of its own: calls until one fails. 0 if that blames a rank as lost, and `victim` is named; 1 if another
// rank is; 2 if it fails otherwise.
int call_until_lost(StoreProcess& stores, const std::string& layout, int rank, std::size_t count, int victim,
                    Gate& running) {
  try {
    const auto store = stores.connect();
    CommunicatorOptions options;
    options.timeout = std::chrono::milliseconds(20'000);
    options.config.log_level = "error";
    options.config.host_id = std::string(1, layout[static_cast<std::size_t>(rank)]);
    const auto c = Communicator::create(*store, "test", rank, static_cast<int>(layout.size()), options);
    FloatCall made(Collective::kAllReduce, count, 1);
    const Error error = error_of([&] {
      for (int k = 0;; ++k) {
        c->run(made.call);
        if (k == 20 && rank == victim) running.open();
      }
    });
    if (error.kind() == ErrorKind::kPeerLost) {
      const bool named = std::string(error.what()).find("rank " + std::to_string(victim)) != std::string::npos;
      return named ? 0 : 1;
    }
    std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "rank %d: %s\n", rank, e.what());
  }
  return 2;
}

// Killed wherever it is: reducing on its host, in the exchange, handing out the result or waiting for it.
TEST(TwoLevelsProcess, AKilledRankEndsTheCallsOfAll) {
  const std::string layout = "aabb";
  for (const std::size_t count : {10UL, 60'000UL, 300'000UL}) {
    for (int victim = 0; victim < 4; ++victim) {
      StoreProcess stores;
      Gate running;
      std::vector<std::unique_ptr<ChildProcess>> ranks;
      for (int r = 0; r < 4; ++r) {
        ranks.push_back(
            std::make_unique<ChildProcess>([&] { return call_until_lost(stores, layout, r, count, victim, running); }));
      }
      ASSERT_TRUE(running.wait()) << "the ranks did not get so far";
      ::kill(ranks[static_cast<std::size_t>(victim)]->pid(), SIGKILL);
      int named = 0;
      for (int r = 0; r < 4; ++r) {
        const int code = ranks[static_cast<std::size_t>(r)]->join();
        if (r == victim) continue;
        EXPECT_LT(code, 2) << "rank " << r << " of victim " << victim;
        named += code == 0 ? 1 : 0;
      }
      EXPECT_GT(named, 0) << "nobody names rank " << victim;
    }
  }
}

}  // namespace
}  // namespace tutti::test
