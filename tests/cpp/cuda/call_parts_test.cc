// Calls that are launched in parts: nothing is launched before all parts can be, and what fails after that ends the
// group.
#include "communicator/call_parts.h"

#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti {
namespace {

// A communicator that launches segments, or fails to at one place.
struct Segments {
  std::size_t bytes, segment;
  std::optional<std::size_t> unprepared, unlaunched;  // where they begin
  std::vector<std::size_t> prepared, launched;
  std::vector<std::size_t> with;  // what each was launched with: where that was prepared
  std::vector<std::string> failures;

  void run() {
    const auto prepare = [this](std::size_t begin) {
      if (unprepared == begin) throw std::bad_alloc();
      prepared.push_back(begin);
      return begin;
    };
    const auto launch = [this](std::size_t begin, std::size_t made) {
      if (unlaunched == begin) throw std::runtime_error("the device is gone");
      launched.push_back(begin);
      with.push_back(made);
    };
    issue_as_a_whole([this] { return launched.size(); }, [&] { launch_segments(bytes, segment, prepare, launch); },
                     [this](const std::string& why) { failures.push_back(why); });
  }
};

using Places = std::vector<std::size_t>;

TEST(CallParts, AllSegmentsAreLaunchedInOrderWithWhatIsTheirs) {
  Segments call{10, 4, {}, {}, {}, {}, {}, {}};
  call.run();
  EXPECT_EQ(call.prepared, (Places{0, 8}));
  EXPECT_EQ(call.launched, (Places{0, 4, 8}));
  EXPECT_EQ(call.with, (Places{0, 0, 8}));
  EXPECT_TRUE(call.failures.empty());
  Segments even{8, 4, {}, {}, {}, {}, {}, {}}, one{3, 4, {}, {}, {}, {}, {}, {}}, none{0, 4, {}, {}, {}, {}, {}, {}};
  even.run();
  EXPECT_EQ(even.launched, (Places{0, 4}));
  one.run();
  EXPECT_EQ(one.prepared, (Places{0}));
  EXPECT_EQ(one.launched, (Places{0}));
  none.run();
  EXPECT_TRUE(none.launched.empty());
}

// A rank without memory for the last segment has made no call: it may make it again.
TEST(CallParts, NothingIsLaunchedBeforeTheLastSegmentIsReady) {
  Segments call{10, 4, 8, {}, {}, {}, {}, {}};
  EXPECT_THROW(call.run(), std::bad_alloc);
  EXPECT_TRUE(call.launched.empty());
  EXPECT_TRUE(call.failures.empty());
  call.unprepared.reset();
  call.run();
  EXPECT_EQ(call.launched, (Places{0, 4, 8}));
}

TEST(CallParts, WhatFailsBehindTheFirstSegmentEndsTheGroup) {
  Segments call{10, 4, {}, 4, {}, {}, {}, {}};
  EXPECT_THROW(call.run(), std::runtime_error);
  EXPECT_EQ(call.launched, (Places{0}));
  ASSERT_EQ(call.failures.size(), 1U);
  EXPECT_NE(call.failures.front().find("only in part: the device is gone"), std::string::npos) << call.failures.front();
}

TEST(CallParts, WhatFailsAtTheFirstSegmentEndsNothing) {
  Segments call{10, 4, {}, 0, {}, {}, {}, {}};
  EXPECT_THROW(call.run(), std::runtime_error);
  EXPECT_TRUE(call.launched.empty());
  EXPECT_TRUE(call.failures.empty());
}

}  // namespace
}  // namespace tutti
