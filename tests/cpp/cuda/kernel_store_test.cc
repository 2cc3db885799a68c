// Compiled plans on disk, and the thread that makes them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "algorithm/compiled/embedded.h"
#include "algorithm/compiled/plan_compiler.h"
#include "algorithm/compiled/plan_source.h"
#include "executor/executor_plans.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"
#include "tutti/error.h"

namespace tutti {
namespace {

std::string the_file(const std::string& folder) {
  return std::filesystem::directory_iterator(folder + "/kernels")->path();
}

TEST(KernelStore, KeepsWhatWasCompiled) {
  const test::TemporaryFolder folder;
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  EXPECT_FALSE(KernelStore(folder.path()).find(key));
  KernelStore(folder.path()).keep(key, std::string("cu\0bin", 6));
  EXPECT_EQ(KernelStore(folder.path()).find(key), std::string("cu\0bin", 6));
}

TEST(KernelStore, ANameForAllThatMatters) {
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  EXPECT_EQ(key, KernelStore::key("source", "sm_90", "13.0"));
  EXPECT_NE(key, KernelStore::key("other", "sm_90", "13.0"));
  EXPECT_NE(key, KernelStore::key("source", "sm_100", "13.0"));
  EXPECT_NE(key, KernelStore::key("source", "sm_90", "13.1"));
}

TEST(KernelStore, WhatIsDamagedCountsForNothing) {
  const test::TemporaryFolder folder;
  const KernelStore store(folder.path());
  const std::string key = KernelStore::key("source", "sm_90", "13.0");
  store.keep(key, "a cubin of some bytes");
  const std::string file = the_file(folder.path());
  std::string whole;
  {
    std::ifstream in(file, std::ios::binary);
    whole.assign(std::istreambuf_iterator<char>(in), {});
  }
  const auto with = [&](const std::string& content) {
    std::ofstream(file, std::ios::binary) << content;
    return store.find(key);
  };
  std::string altered = whole;
  altered.back() ^= 1;
  EXPECT_FALSE(with(altered));
  EXPECT_FALSE(with(whole.substr(0, whole.size() - 1)));
  EXPECT_FALSE(with(whole.substr(0, 20)));
  EXPECT_FALSE(with(""));
  EXPECT_TRUE(with(whole));
  // An entry under another's name.
  std::filesystem::rename(file, folder.path() + "/kernels/" + KernelStore::key("x", "sm_90", "13.0") + ".cubin");
  EXPECT_FALSE(store.find(KernelStore::key("x", "sm_90", "13.0")));
}

TEST(PlanCompiler, WithoutACompilerTheRequestFailsAndSaysWhy) {
  PlanCompiler compiler("", "sm_90", "/no/such/libnvrtc.so");
  const auto code = compiler.request([] { return KernelText{}; });
  PlanCompiler::wait(*code);
  ASSERT_EQ(code->state(), CompiledPlanCode::State::kFailed);
  EXPECT_NE(code->why().find("NVRTC is not installed"), std::string::npos) << code->why();
  EXPECT_NE(code->why().find("/no/such/libnvrtc.so"), std::string::npos) << code->why();
}

// What waits when the compiler ends is told so, and nobody waits for good.
TEST(PlanCompiler, ItsEndEndsRequests) {
  std::shared_ptr<const CompiledPlanCode> codes[8];
  {
    PlanCompiler compiler("", "sm_90", SLOW_NVRTC);
    for (auto& code : codes) code = compiler.request([] { return KernelText{}; });
    PlanCompiler::wait(*codes[0]);
  }
  EXPECT_EQ(codes[0]->state(), CompiledPlanCode::State::kReady) << codes[0]->why();
  for (const auto& code : codes) EXPECT_NE(code->state(), CompiledPlanCode::State::kPending);
}

// NVRTC's own end may come before that of any object here: a process that exits waits for the compilation under way.
TEST(PlanCompiler, ExitWaitsForTheCompilationUnderWay) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto exits = [] {
    auto* const never_destroyed = new PlanCompiler("", "sm_90", SLOW_NVRTC);
    std::atomic<bool> begun{false};
    static_cast<void>(never_destroyed->request([&] {
      begun = true;
      begun.notify_all();
      return KernelText{};
    }));
    begun.wait(false);
    std::exit(0);
  };
  EXPECT_EXIT(exits(), testing::ExitedWithCode(0), "");
}

// All headers that a plan's source includes, and those that they include, are in the library.
TEST(EmbeddedHeaders, AreComplete) {
  std::vector<std::string> names;
  for (const EmbeddedFile& file : compiled_plan_headers()) names.emplace_back(file.name);
  const auto has = [&](const std::string& name) { return std::find(names.begin(), names.end(), name) != names.end(); };
  PlanSourceRequest request;
  request.bytes = 64;
  std::string all = emit_plan(plan::write_plan(plan::packet_two_step_all_reduce(2), -1), request, "").text;
  for (const EmbeddedFile& file : compiled_plan_headers()) all += file.text;
  int found = 0;
  for (std::size_t at = all.find("#include \""); at != std::string::npos;
       at = all.find("#include \"", at + 1), ++found) {
    const std::size_t begin = at + 10;
    EXPECT_TRUE(has(all.substr(begin, all.find('"', begin) - begin))) << all.substr(at, 60);
  }
  EXPECT_GT(found, 10);
}

// Where the compiler is installed: what it makes of plans, and that it is not asked twice for the same.
TEST(PlanCompiler, CompilesPlansWhereThereIsNvrtc) {
  try {
    Nvrtc::load("");
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  const test::TemporaryFolder folder;
  PlanSourceRequest request;
  request.bytes = 4096;
  const KernelText text = emit_plan(plan::write_plan(plan::packet_two_step_all_reduce(2), -1), request, "");
  std::string first;
  for (int round = 0; round < 2; ++round) {
    PlanCompiler compiler(folder.path(), "sm_90", "");
    const auto code = compiler.request([&] { return text; });
    PlanCompiler::wait(*code);
    ASSERT_EQ(code->state(), CompiledPlanCode::State::kReady) << code->why();
    EXPECT_EQ(code->workers(), text.workers);
    EXPECT_EQ(code->cubin().substr(1, 3), "ELF");
    if (round == 0) first = code->cubin();
    EXPECT_EQ(code->cubin(), first);
  }
}

}  // namespace
}  // namespace tutti
