// How a communicator on GPUs is made, up to the plug-in: ranks are threads, the plug-in is host_plugin.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "support/temporary_folder.h"
#include "tutti/cuda_communicator.h"

namespace tutti {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

// What making a group with these options of each rank ends with; empty: it was made.
std::vector<std::optional<Error>> make_group(const std::vector<CudaOptions>& options) {
  MemoryStore store;
  std::vector<std::optional<Error>> errors(options.size());
  std::vector<std::thread> ranks;
  const int size = static_cast<int>(options.size());
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      const auto at = static_cast<std::size_t>(r);
      try {
        CudaOptions mine = options[at];
        mine.timeout = kLong;
        static_cast<void>(CudaCommunicator::create(store, "group", r, size, mine));
      } catch (const Error& error) {
        errors[at] = error;
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  return errors;
}

class CudaEntry : public testing::Test {
 protected:
  void SetUp() override { ::setenv("TUTTI_PLUGIN_PATH", HOST_PLUGIN, 1); }
};

TEST_F(CudaEntry, RanksMeet) {
  for (const auto& error : make_group({{}, {}, {}})) EXPECT_FALSE(error.has_value()) << error->what();
}

// The others do not wait for their deadline, and know why.
TEST_F(CudaEntry, AFileThatOneRankCannotLoadIsToldToAll) {
  const test::TemporaryFolder folder;
  std::vector<CudaOptions> options(3);
  options[1].plan_path = folder.write("broken.json", "{");
  const auto start = std::chrono::steady_clock::now();
  const auto errors = make_group(options);
  EXPECT_LT(std::chrono::steady_clock::now() - start, kLong);
  ASSERT_TRUE(errors[0] && errors[1] && errors[2]);
  EXPECT_EQ(errors[1]->kind(), ErrorKind::kInvalidArgument);
  for (const std::size_t other : {0, 2}) {
    EXPECT_EQ(errors[other]->kind(), ErrorKind::kPeerLost);
    const std::string text = errors[other]->what();
    EXPECT_NE(text.find("rank 1 cannot join"), std::string::npos) << text;
    EXPECT_NE(text.find("broken.json"), std::string::npos) << text;
  }
}

// What the caller has left open comes from its Config, where it gives one, and not from the environment.
TEST_F(CudaEntry, ACallersConfigStandsForTheEnvironment) {
  const test::TemporaryFolder folder;
  const std::string broken = folder.write("broken.json", "{");
  ::setenv("TUTTI_PLAN_PATH", broken.c_str(), 1);
  EXPECT_TRUE(make_group({{}})[0].has_value());
  CudaOptions configured;
  configured.config.emplace();
  configured.config->plugin_path = HOST_PLUGIN;
  const auto made = make_group({configured});
  ::unsetenv("TUTTI_PLAN_PATH");
  EXPECT_FALSE(made[0].has_value()) << made[0]->what();
}

}  // namespace
}  // namespace tutti
