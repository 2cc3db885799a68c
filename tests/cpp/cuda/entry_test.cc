// How a communicator on GPUs is made, up to the plug-in: ranks are threads, the plug-in is host_plugin.cc.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/memory_store.h"
#include "support/temporary_folder.h"
#include "tutti/cuda/communicator.h"

namespace tutti {
namespace {

constexpr auto kLong = std::chrono::seconds(60);

// What making a group with these options of each rank ends with; empty: it was made.
std::vector<std::optional<Error>> make_group(const std::vector<CudaOptions>& options) {
  const auto store = std::make_shared<MemoryStore>();
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
  options[1].settings().plan_path = folder.write("broken.json", "{");
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

struct Odd {
  std::string value;      // on rank 1
  std::string others;     // on ranks 0 and 2; unset when empty
  std::string said = {};  // what all ranks are told; nothing where the group forms
};

// Never a rank left waiting.
TEST_F(CudaEntry, EachSettingOfGpusMayDifferOrIsNamedToAllRanks) {
  const std::multimap<std::string, Odd> settings = {
      {"TUTTI_CUDA_TRANSPORT", {"host", "", "TUTTI_CUDA_TRANSPORT is unset on ranks 0 and 2 and host on rank 1"}},
      {"TUTTI_CUDA_TRANSPORT", {"host", "peer", "TUTTI_CUDA_TRANSPORT is peer on ranks 0 and 2 and host on rank 1"}},
      {"TUTTI_CUDA_ALGORITHM",
       {"ll_one_shot", "", "TUTTI_CUDA_ALGORITHM is unset on ranks 0 and 2 and ll_one_shot on rank 1"}},
      {"TUTTI_CUDA_MAX_BLOCKS", {"3", ""}},
      {"TUTTI_CUDA_COMPILE", {"off", "wait"}},
      {"TUTTI_NVRTC", {"/no/such/file", ""}},
      {"TUTTI_CUDA_WATCHDOG", {"end", "log"}},
      {"TUTTI_SECRET", {"a secret", "", "TUTTI_SECRET is unset on ranks 0 and 2 and set on rank 1"}},
  };
  for (const ConfigVariable& variable : describe(Config{})) {
    const bool of_gpus =
        variable.name.find("CUDA") != std::string::npos || variable.name.find("NVRTC") != std::string::npos;
    EXPECT_TRUE(!of_gpus || settings.contains(variable.name)) << variable.name << " is not tried";
  }
  for (const auto& [name, odd] : settings) {
    SCOPED_TRACE(name + "=" + odd.value + " against " + odd.others);
    std::vector<CudaOptions> options(3);
    for (std::size_t r = 0; r < options.size(); ++r) {
      const std::string& value = r == 1 ? odd.value : odd.others;
      options[r].config = parse_config(
          [&, &name = name](const char* asked) { return name == asked && !value.empty() ? value.c_str() : nullptr; });
      options[r].config->plugin_path = HOST_PLUGIN;
    }
    const auto start = std::chrono::steady_clock::now();
    for (const auto& error : make_group(options)) {
      EXPECT_EQ(error.has_value(), !odd.said.empty()) << (error ? error->what() : "");
      if (!error || odd.said.empty()) continue;
      EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
      EXPECT_NE(std::string(error->what()).find(odd.said), std::string::npos) << error->what();
    }
    EXPECT_LT(std::chrono::steady_clock::now() - start, kLong);
  }
}

TEST_F(CudaEntry, WhatMessagesOnlyIsForIsCompared) {
  std::vector<CudaOptions> options(3);
  options[2].messages_only = true;
  for (const auto& error : make_group(options)) {
    ASSERT_TRUE(error);
    EXPECT_EQ(error->kind(), ErrorKind::kMismatch);
    EXPECT_NE(std::string(error->what()).find("messages_only is false on ranks 0 and 1 and true on rank 2"),
              std::string::npos)
        << error->what();
  }
}

}  // namespace
}  // namespace tutti
