// Which compiled plans a communicator asks for, with a compiler that takes a while for each.
#include "communicator/cuda/code_requests.h"

#include <gtest/gtest.h>

#include <memory>

#include "communicator/cuda/quiet_device.h"
#include "executor/executor_plans.h"
#include "tutti/error.h"

namespace tutti::cuda {
namespace {

class Requests : public testing::Test {
 protected:
  static std::unique_ptr<CodeRequests> with(CompileMode mode) {
    return std::make_unique<CodeRequests>(CodeRequests::Options{mode, "", "sm_90", SLOW_NVRTC, Logger()});
  }
  static executor::EmitRequest of(std::size_t bytes) {
    executor::EmitRequest request;
    request.variant.bytes = bytes;
    return request;
  }
  // As the communicator, where the device is quiet.
  void load(CodeRequests& requests) {
    requests.load_ready([this](const CompiledPlanCode& code, const executor::DevicePlan&) {
      EXPECT_EQ(code.cubin(), "c");
      ++loads_;
      return std::make_unique<LoadedCode>();
    });
  }

  const std::shared_ptr<const executor::DevicePlan> plan_ = std::make_shared<const executor::DevicePlan>(
      std::make_shared<const plan::Plan>(plan::ring_all_reduce(2)), 0, executor::DeviceLimits{64});
  int loads_ = 0;
};

TEST_F(Requests, WhatIsCompiledServesOnceItIsLoaded) {
  const auto requests = with(CompileMode::kWait);
  EXPECT_EQ(requests->find(plan_, of(4096), true), nullptr);
  EXPECT_EQ(requests->open(), 1);
  EXPECT_TRUE(QuietDevice::of_process().any_waits());
  load(*requests);
  const LoadedCode* const loaded = requests->find(plan_, of(4096), true);
  EXPECT_NE(loaded, nullptr);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(requests->open(), 0);
  EXPECT_FALSE(QuietDevice::of_process().any_waits());
  EXPECT_EQ(requests->find(plan_, of(4096), false), loaded);
}

// Where nothing can be loaded any more nothing is asked for, and no call waits for a compiler.
TEST_F(Requests, NothingIsAskedForInVain) {
  for (const CompileMode mode : {CompileMode::kOn, CompileMode::kWait}) {
    const auto requests = with(mode);
    for (std::size_t bytes = 64; bytes <= 4096; bytes *= 2) EXPECT_EQ(requests->find(plan_, of(bytes), false), nullptr);
    EXPECT_EQ(requests->open(), 0);
    EXPECT_FALSE(QuietDevice::of_process().any_waits());
  }
}

// At the first capture: what is loaded goes on serving, and of the rest nobody waits for a quiet device any more.
TEST_F(Requests, WhatIsNotLoadedCanBeDropped) {
  const auto requests = with(CompileMode::kWait);
  EXPECT_EQ(requests->find(plan_, of(64), true), nullptr);
  load(*requests);
  const LoadedCode* const loaded = requests->find(plan_, of(64), true);
  ASSERT_NE(loaded, nullptr);
  EXPECT_EQ(requests->find(plan_, of(128), true), nullptr);
  EXPECT_EQ(requests->open(), 1);
  requests->drop_open();
  EXPECT_EQ(requests->open(), 0);
  EXPECT_FALSE(QuietDevice::of_process().any_waits());
  load(*requests);
  EXPECT_EQ(loads_, 1);
  EXPECT_EQ(requests->find(plan_, of(64), false), loaded);
  EXPECT_EQ(requests->find(plan_, of(128), false), nullptr);
  // Also while it is being compiled.
  const auto busy = with(CompileMode::kOn);
  EXPECT_EQ(busy->find(plan_, of(64), true), nullptr);
  busy->drop_open();
  EXPECT_EQ(busy->open(), 0);
}

TEST_F(Requests, WhatCannotBeLoadedIsGivenUp) {
  const auto requests = with(CompileMode::kWait);
  EXPECT_EQ(requests->find(plan_, of(64), true), nullptr);
  requests->load_ready([](const CompiledPlanCode&, const executor::DevicePlan&) -> std::unique_ptr<LoadedCode> {
    throw_error(ErrorKind::kUnsupported, "has no room");
  });
  EXPECT_EQ(requests->open(), 0);
  EXPECT_EQ(requests->find(plan_, of(64), true), nullptr);
  load(*requests);
  EXPECT_EQ(loads_, 0);
  EXPECT_FALSE(QuietDevice::of_process().any_waits());
}

}  // namespace
}  // namespace tutti::cuda
