// Algorithms that a program names: ranks are threads, so that sanitizers see both sides.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "communicator/calls.h"
#include "communicator/thread_ranks.h"
#include "executor/executor_plans.h"
#include "plan/writer.h"

namespace tutti::test {
namespace {

UserAlgorithmPtr made(plan::Plan plan, const std::string& name) {
  plan.name = name;
  return plan_algorithm(plan::write_plan(plan), "a test");
}

// An all-reduce of one rank's number, by `choice` if there is one; what comes out of it.
float reduce(Communicator& c, const UserAlgorithmPtr& algorithm, std::size_t count = 1000) {
  std::vector<float> data(count, static_cast<float>(c.rank() + 1));
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = count;
  call.input = call.output = Blocks::single(data.data(), count * sizeof(float));
  const AlgorithmChoice choice{algorithm, {}};
  if (algorithm != nullptr) call.choice = &choice;
  c.run(call);
  EXPECT_TRUE(std::all_of(data.begin(), data.end(), [&](float value) { return value == data[0]; }));
  return data[0];
}

std::uint64_t calls_of(Communicator& c, const std::string& algorithm) {
  std::uint64_t calls = 0;
  for (const MetricsRow& row : c.metrics().rows) calls += row.algorithm == algorithm ? row.calls : 0;
  return calls;
}

TEST(UserAlgorithms, ACallRunsByTheOneThatItNames) {
  World world;
  world.size = 3;
  const auto ring = made(plan::ring_all_reduce(3), "ring");
  const auto packets = made(plan::packet_two_step_all_reduce(3), "packets");
  const auto staged = library_algorithm(Collective::kAllReduce, "staged");
  run_ranks(world, [&](Communicator& c) {
    for (int round = 0; round < 3; ++round) {
      for (const auto& algorithm : {ring, packets, staged, UserAlgorithmPtr()}) EXPECT_EQ(reduce(c, algorithm), 6);
    }
    EXPECT_EQ(calls_of(c, "plan:ring"), 3U);
    EXPECT_EQ(calls_of(c, "plan:packets"), 3U);
    EXPECT_GE(calls_of(c, "staged"), 3U);
  });
}

TEST(UserAlgorithms, WhatCannotRunIsRefusedAndNothingIsLost) {
  World world;
  const auto other = made(plan::ring_all_reduce(3), "other");
  const auto gather = made(plan::port_all_gather(2), "gather");
  const auto ring = made(plan::ring_all_reduce(2), "ring");
  AlgorithmLimits limits = ring->limits();
  limits.max_bytes = 100;
  const auto small = ring->with_limits(limits);
  EXPECT_NE(small->identity(), ring->identity());
  run_ranks(world, [&](Communicator& c) {
    for (const auto& [algorithm, text] : {std::pair(other, "is for 3 ranks"), std::pair(gather, "computes all_gather"),
                                          std::pair(small, "is for messages of other sizes")}) {
      const Error error = error_of([&, &algorithm = algorithm] { reduce(c, algorithm); });
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument) << error.what();
      EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
    }
    EXPECT_EQ(c.sequence(), 0U);
    // Known only when all ranks have announced: the call is over, the group is not.
    const auto mapped = library_algorithm(Collective::kAllReduce, "mapped");
    EXPECT_EQ(error_of([&] { reduce(c, mapped); }).kind(), ErrorKind::kUnsupported);
    EXPECT_EQ(reduce(c, small, 20), 3);
  });
}

// Reasons are predicates of the algorithm, or sentences of their own.
TEST(UserAlgorithms, WhyOneCannotRunReadsAsASentence) {
  World world;
  world.size = 4;
  world.host_of = [](int rank) { return std::string(1, "aabb"[rank]); };
  const auto ring = made(plan::ring_all_reduce(4), "ring");
  AlgorithmLimits limits = ring->limits();
  limits.max_bytes = 100;
  const auto small = ring->with_limits(limits);
  run_ranks(world, [&](Communicator& c) {
    const std::string head = "\"ring\" cannot run this all_reduce of 4000 bytes a rank block: ";
    const std::string far = error_of([&] { reduce(c, ring); }).what();
    EXPECT_NE(far.find(head + "rank 0 reaches rank 3 of another host by its memory channel 0"), std::string::npos)
        << far;
    const std::string other = error_of([&] { reduce(c, small); }).what();
    EXPECT_NE(other.find(head + "is for messages of other sizes"), std::string::npos) << other;
  });
}

class Foreign final : public UserAlgorithm {
 public:
  Foreign() : UserAlgorithm({}) {}
  Kind kind() const noexcept override { return Kind::kLibrary; }
  const std::string& name() const noexcept override { return name_; }
  const std::string& collective_name() const noexcept override { return name_; }
  std::optional<Collective> collective() const noexcept override { return Collective::kAllReduce; }
  UserAlgorithmPtr with_limits(const AlgorithmLimits& /*limits*/) const override { return nullptr; }

 protected:
  std::uint64_t content() const noexcept override { return 1; }

 private:
  const std::string name_ = "foreign";
};

TEST(UserAlgorithms, AClassOfSomebodyElseIsRefused) {
  run_ranks(World{}, [&](Communicator& c) {
    const Error error = error_of([&] { reduce(c, std::make_shared<Foreign>()); });
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_NE(std::string(error.what()).find("\"foreign\" is of a class that Tutti does not know"), std::string::npos);
    EXPECT_EQ(reduce(c, nullptr), 3);
  });
}

TEST(UserAlgorithms, RanksThatNameDifferentOnesAreToldWhich) {
  const auto ring = made(plan::ring_all_reduce(2), "ring");
  const auto switched = made(plan::switch_all_reduce(2), "an_algorithm_with_a_long_name");
  run_ranks({}, [&](Communicator& c) {
    const Error error = error_of([&] { reduce(c, c.rank() == 0 ? ring : switched); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    const std::string text = error.what();
    EXPECT_NE(text.find("by ring ("), std::string::npos) << text;
    const char* other = c.rank() == 0 ? "by an_algo..ng_name (" : "by an_algorithm_with_a_long_name (";
    EXPECT_NE(text.find(other), std::string::npos) << text;
  });
}

TEST(UserAlgorithms, OrdinaryCallsTakeWhatIsInstalled) {
  const auto ring = made(plan::ring_all_reduce(2), "ring");
  const auto other = made(plan::ring_all_reduce(3), "other");
  run_ranks({}, [&](Communicator& c) {
    c.set_algorithms({{other, ring}, nullptr});
    EXPECT_EQ(reduce(c, nullptr), 3);
    EXPECT_EQ(calls_of(c, "plan:ring"), 1U);
    c.set_algorithms({});
    EXPECT_EQ(reduce(c, nullptr), 3);
    EXPECT_EQ(calls_of(c, "plan:ring"), 1U);
    if (c.rank() == 0) c.set_algorithms({{ring}, nullptr});
    const Error error = error_of([&] { reduce(c, nullptr); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("with the plans"), std::string::npos) << error.what();
  });
}

TEST(UserAlgorithms, RanksThatHaveInstalledDifferentOnesAreToldSo) {
  const auto ring = made(plan::ring_all_reduce(2), "ring");
  const auto switched = made(plan::switch_all_reduce(2), "switched");
  AlgorithmLimits limits = ring->limits();
  limits.max_bytes = 1 << 20;
  for (const UserAlgorithmPtr& other : {switched, ring->with_limits(limits)}) {
    run_ranks({}, [&](Communicator& c) {
      c.set_algorithms({{c.rank() == 0 ? ring : other}, nullptr});
      const Error error = error_of([&] { reduce(c, nullptr); });
      EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
      EXPECT_NE(std::string(error.what()).find("with the plans"), std::string::npos) << error.what();
    });
  }
}

TEST(UserAlgorithms, AFunctionChoosesAmongThem) {
  const auto ring = made(plan::ring_all_reduce(2), "ring");
  const auto staged = library_algorithm(Collective::kAllReduce, "staged");
  run_ranks({}, [&](Communicator& c) {
    AlgorithmSet set;
    set.algorithms = {ring};
    set.choose = [&](const AlgorithmRequest& request) -> UserAlgorithmPtr {
      if (request.bytes == 4) throw_error(ErrorKind::kInvalidArgument, "not this one");
      if (request.bytes < 100) return nullptr;
      return request.bytes < 2000 ? ring : staged;
    };
    c.set_algorithms(set);
    for (const std::size_t count : {2, 100, 1000}) EXPECT_EQ(reduce(c, nullptr, count), 3);
    EXPECT_EQ(calls_of(c, "plan:ring"), 1U);
    EXPECT_EQ(calls_of(c, "staged"), 1U);
    EXPECT_EQ(std::string(error_of([&] { reduce(c, nullptr, 1); }).what()), "not this one");
    EXPECT_EQ(reduce(c, nullptr, 2), 3);
    // It answers differently on each rank.
    set.choose = [&](const AlgorithmRequest& request) { return request.rank == 0 ? ring : staged; };
    c.set_algorithms(set);
    const Error error = error_of([&] { reduce(c, nullptr); });
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch) << error.what();
    EXPECT_NE(std::string(error.what()).find("by staged ("), std::string::npos) << error.what();
  });
}

// One of several queued calls is refused on one rank, before anything is sent: the next must not take its place.
TEST(UserAlgorithms, ThatCannotBeChosenForAQueuedCallEndTheGroup) {
  run_ranks({}, [](Communicator& c) {
    int asked = 0;
    AlgorithmSet set;
    set.choose = [&](const AlgorithmRequest&) -> UserAlgorithmPtr {
      if (c.rank() == 0 && ++asked == 2) throw Error(ErrorKind::kInvalidArgument, "none for this one");
      return nullptr;
    };
    c.set_algorithms(std::move(set));
    std::vector<float> one(4, 1), two(4, 10), three(4, 100);
    const std::array<WorkPtr, 3> works{c.submit(all_reduce(one)), c.submit(all_reduce(two)),
                                       c.submit(all_reduce(three))};
    EXPECT_STREQ(error_of([&] { works[0]->wait(); }).what(), "");
    EXPECT_EQ(one.front(), 2);
    const Error second = error_of([&] { works[1]->wait(); }), third = error_of([&] { works[2]->wait(); });
    if (c.rank() == 0) {
      EXPECT_STREQ(second.what(), "none for this one");
    }
    EXPECT_NE(std::string(third.what()).find("none for this one"), std::string::npos) << third.what();
  });
}

TEST(UserAlgorithms, AreAsWhatTheyDo) {
  plan::Plan one = plan::ring_all_reduce(2);
  one.name = "ring";
  plan::Plan same = one;
  same.source = "elsewhere";
  same.ranks[0].blocks[0].operations[0].origin = "other.py:3";
  EXPECT_EQ(made(one, "ring")->identity(), made(same, "ring")->identity());
  EXPECT_NE(made(one, "ring")->identity(), made(one, "other")->identity());
  EXPECT_NE(made(one, "ring")->identity(), made(plan::switch_all_reduce(2), "ring")->identity());
  const Error error = error_of([] { library_algorithm(Collective::kAllReduce, "none"); });
  EXPECT_NE(std::string(error.what()).find("slots, "), std::string::npos) << error.what();
  for (const std::string& name : library_algorithm_names(Collective::kBroadcast)) {
    EXPECT_EQ(library_algorithm(Collective::kBroadcast, name)->name(), name);
  }
}

}  // namespace
}  // namespace tutti::test
