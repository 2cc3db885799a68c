// Which algorithm the selector takes: forced, the user's, measured, by preference.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "algorithm/collection.h"

namespace tutti {
namespace {

// One that refuses what it is told to, and runs nothing.
class Named final : public Algorithm {
 public:
  explicit Named(std::string name, std::size_t most = SIZE_MAX, bool announces = false, bool mapped_only = false)
      : name_(std::move(name)), most_(most), announces_(announces), mapped_only_(mapped_only) {}
  std::string_view name() const noexcept override { return name_; }
  Collective collective() const noexcept override { return Collective::kAllReduce; }
  std::string_view summary() const noexcept override { return "is named"; }
  const char* refusal(const CallShape& shape) const noexcept override {
    if (announces_ && shape.announced) return "announces the call itself";
    if (mapped_only_ && !shape.mapped_input) return "not mapped";
    return shape.bytes > most_ ? "too large" : nullptr;
  }
  bool announces() const noexcept override { return announces_; }
  Outcome run(const Call&, CallContext&) const noexcept override { return kOkOutcome; }

 private:
  std::string name_;
  std::size_t most_;
  bool announces_, mapped_only_;
};

std::shared_ptr<AlgorithmCollection> collection() {
  auto made = std::make_shared<AlgorithmCollection>();
  made->add(std::make_shared<Named>("small", 2048, true));
  made->add(std::make_shared<Named>("shared", SIZE_MAX, false, true));
  made->add(std::make_shared<Named>("staged"));
  made->add(std::make_shared<Named>("ring"));
  return made;
}

TuningRule rule(std::size_t bytes, std::size_t max_bytes, std::vector<TuningRule::Measured> measured,
                bool mapped = false, DataType dtype = DataType::kFloat32) {
  TuningRule made;
  made.collective = Collective::kAllReduce;
  made.dtype = dtype;
  made.mapped = mapped;
  made.bytes = bytes;
  made.max_bytes = max_bytes;
  made.measured = std::move(measured);
  return made;
}

CallShape shape(std::size_t bytes, bool announced = true, bool mapped = false) {
  CallShape made;
  made.collective = Collective::kAllReduce;
  made.dtype = DataType::kFloat32;
  made.bytes = bytes;
  made.ranks = 2;
  made.announced = announced;
  made.mapped_input = made.mapped_output = mapped;
  return made;
}

std::string chosen(const Selector& selector, const CallShape& shape) {
  const Algorithm* algorithm = selector.select(shape);
  return algorithm != nullptr ? std::string(algorithm->name()) : "none";
}

TEST(Selector, WithoutRulesTheOrderOfPreferenceCounts) {
  const Selector selector(collection(), {}, "");
  EXPECT_EQ(chosen(selector, shape(64, false)), "small");
  EXPECT_EQ(chosen(selector, shape(4096)), "staged");
  EXPECT_EQ(chosen(selector, shape(4096, true, true)), "shared");
}

TEST(Selector, ARuleHoldsUpToItsSize) {
  const Selector selector(collection(),
                          {rule(8192, 16'000, {{"ring", 10}, {"staged", 20}}), rule(1024, 4000, {{"staged", 5}}),
                           rule(65'536, 131'072, {{"staged", 9}, {"ring", 10}})},
                          "");
  EXPECT_EQ(chosen(selector, shape(1, false)), "staged") << "the smallest size stands for all below";
  EXPECT_EQ(chosen(selector, shape(4000)), "staged");
  EXPECT_EQ(chosen(selector, shape(4001)), "ring");
  EXPECT_EQ(chosen(selector, shape(16'000)), "ring");
  EXPECT_EQ(chosen(selector, shape(16'001)), "staged");
  EXPECT_EQ(chosen(selector, shape(200'000)), "staged") << "past the largest size the order of preference counts";
}

TEST(Selector, WhatRefusesIsFollowedByTheNextOfTheRule) {
  const Selector selector(collection(), {rule(4096, 8192, {{"small", 1}, {"unknown", 2}, {"ring", 3}, {"staged", 4}})},
                          "");
  EXPECT_EQ(chosen(selector, shape(4096)), "ring");
}

TEST(Selector, MappedAndPrivateTensorsHaveTheirOwnRules) {
  const Selector selector(
      collection(), {rule(4096, 8192, {{"ring", 1}}), rule(4096, 8192, {{"staged", 1}, {"shared", 2}}, true)}, "");
  EXPECT_EQ(chosen(selector, shape(4096)), "ring");
  EXPECT_EQ(chosen(selector, shape(4096, true, true)), "staged");
  CallShape half = shape(4096);
  half.mapped_input = true;
  EXPECT_EQ(chosen(selector, half), "shared") << "half mapped was not measured";
}

TEST(Selector, TypesThatWereNotMeasuredGoByFloat32) {
  const Selector selector(collection(),
                          {rule(4096, 8192, {{"ring", 1}}, false, DataType::kBfloat16),
                           rule(4096, 8192, {{"staged", 1}}, false, DataType::kFloat32)},
                          "");
  CallShape call = shape(4096);
  EXPECT_EQ(chosen(selector, call), "staged");
  call.dtype = DataType::kBfloat16;
  EXPECT_EQ(chosen(selector, call), "ring");
  call.dtype = DataType::kInt8;
  EXPECT_EQ(chosen(selector, call), "staged");
}

TEST(Selector, UnevenCallsFollowNoRule) {
  const Selector selector(collection(), {rule(4096, 8192, {{"ring", 1}})}, "");
  CallShape call = shape(0);
  call.uneven = true;
  EXPECT_EQ(chosen(selector, call), "staged");
}

TEST(Selector, ForcedBeforeTheUsersBeforeMeasured) {
  auto all = collection();
  all->prefer({std::make_shared<Named>("plan:mine", 5000)});
  const std::vector<TuningRule> rules{rule(4096, 1 << 20, {{"ring", 1}})};
  const Selector selector(all, rules, "");
  EXPECT_EQ(chosen(selector, shape(4096)), "plan:mine");
  EXPECT_EQ(chosen(selector, shape(8192)), "ring");
  EXPECT_EQ(chosen(Selector(all, rules, "all_reduce=staged"), shape(4096)), "staged");
}

TEST(Selector, ARuleDoesNotMeanTheUsersPlanOfThatName) {
  auto all = collection();
  all->prefer({std::make_shared<Named>("plan:x", 100)});
  all->add(std::make_shared<Named>("plan:x"));
  const Selector selector(all, {rule(4096, 8192, {{"plan:x", 1}})}, "");
  EXPECT_EQ(selector.select(shape(4096)), all->of(Collective::kAllReduce).back().get());
}

TEST(Selector, ExplainsByTheMeasuredTimes) {
  const Selector selector(collection(),
                          {rule(4096, 8192, {{"ring", 3200}, {"plan:other", 2'500'000}, {"staged", 4000}})}, "");
  const std::string text = selector.explain(shape(4096));
  EXPECT_NE(text.find("-> ring: is named; 3.2 us\n"), std::string::npos) << text;
  EXPECT_NE(text.find("   staged: would work; slower; 4 us\n"), std::string::npos) << text;
  EXPECT_NE(text.find("   plan:other: measured, but chosen nowhere; 2.5 ms\n"), std::string::npos) << text;
  EXPECT_NE(text.find("4096 bytes, f32, private"), std::string::npos) << text;
  const Selector kept(collection(), {rule(4096, 8192, {{"staged", 3300}, {"ring", 3200}})}, "");
  EXPECT_NE(kept.explain(shape(4096)).find("   ring: would work; measured, but not faster by enough; 3.2 us\n"),
            std::string::npos)
      << kept.explain(shape(4096));
}

}  // namespace
}  // namespace tutti
