// Tuning tables under communicators: what all ranks agree on, and what a table chooses.
#include <gtest/gtest.h>

#include <string>

#include "algorithm/tuning/tuned.h"
#include "base/machine.h"
#include "base/secret.h"
#include "communicator/thread_ranks.h"
#include "plan/plan_builder.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"

namespace tutti::test {
namespace {

// A table that chooses `algorithm` for all-reduces of 1 KB to 128 KB among two ranks, whether or not they share cores.
std::string table(const std::string& algorithm, const std::string& plans = "") {
  std::string cells;
  for (const char* crowded : {"false", "true"}) {
    for (const char* tensors : {"private", "mapped"}) {
      for (const char* bytes : {"1024", "65536"}) {
        cells += std::string(cells.empty() ? "" : ", ") + R"({"ranks": 2, "crowded": )" + crowded +
                 R"(, "collective": "all_reduce", "dtype": "f32", "tensors": ")" + tensors + R"(", "bytes": )" + bytes +
                 R"(, "default": "staged", "choice": ")" + algorithm + R"(", "measured": [{"algorithm": ")" +
                 algorithm + R"(", "ns": 100}, {"algorithm": "staged", "ns": 200}]})";
      }
    }
  }
  const Machine machine = this_machine();
  return R"({"version": 1, "tutti": ")" TUTTI_VERSION R"(", "machine": {"cpu": ")" + machine.cpu + R"(", "cores": )" +
         std::to_string(machine.cores) + R"(, "last_cache_bytes": )" + std::to_string(machine.last_cache_bytes) +
         R"(}, "plans": [)" + plans + R"(], "cells": [)" + cells + "]}";
}

// The algorithm of an all-reduce of so many floats, whose result must be right.
std::string run_all_reduce(Communicator& c, std::size_t count) {
  std::vector<float> data(count, static_cast<float>(c.rank() + 1));
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.count = count;
  call.input = call.output = Blocks::single(data.data(), count * sizeof(float));
  c.reset_metrics();
  c.run(call);
  EXPECT_EQ(data, std::vector<float>(count, 3.0F));
  return c.metrics().rows.front().algorithm;
}

TEST(TunedGroup, TakesWhatTheTableChooses) {
  const TemporaryFolder here;
  const std::string file = here.write("table.json", table("ring"));
  World world;
  world.tuning_path_of = [&](int) { return file; };
  run_ranks(world, [](Communicator& c) {
    EXPECT_EQ(run_all_reduce(c, 4096), "ring");
    EXPECT_EQ(run_all_reduce(c, 16), "ring") << "below the smallest size, too";
    EXPECT_NE(run_all_reduce(c, 1 << 20), "ring") << "past the largest the untuned order counts";
  });
}

TEST(TunedGroup, RunsAPlanThatTheTableChooses) {
  const TemporaryFolder here;
  plan::Plan made = plan::ring_all_reduce(2);
  made.name = "tuned";
  const std::string text = plan::write_plan(made);
  here.write("tuned.json", text);
  const std::string entry = R"({"name": "plan:tuned", "collective": "all_reduce", "ranks": 2, "file": "tuned.json",)"
                            R"( "sha256": ")" +
                            hexadecimal(sha256(text)) + R"("})";
  const std::string file = here.write("table.json", table("plan:tuned", entry));
  World world;
  world.tuning_path_of = [&](int) { return file; };
  run_ranks(world, [](Communicator& c) {
    EXPECT_EQ(run_all_reduce(c, 4096), "plan:tuned");
    EXPECT_NE(run_all_reduce(c, 1 << 20), "plan:tuned");
  });
}

TEST(TunedGroup, TheUsersPlansComeFirst) {
  const TemporaryFolder here;
  const std::string tuned = here.write("table.json", table("ring"));
  plan::Plan made = plan::ring_all_reduce(2);
  made.name = "mine";
  const std::string mine = here.write("mine.json", plan::write_plan(made));
  World world;
  world.tuning_path_of = [&](int) { return tuned; };
  world.plan_path_of = [&](int) { return mine; };
  run_ranks(world, [](Communicator& c) { EXPECT_EQ(run_all_reduce(c, 4096), "plan:mine"); });
}

// A table written anew while a job starts must not break it.
TEST(TunedGroup, WhereTablesDifferNoneCounts) {
  const TemporaryFolder here;
  const std::string one = here.write("one.json", table("ring"));
  const std::string two = here.write("two.json", table("direct"));
  for (const std::string& other : {two, std::string("none")}) {
    for (const int odd : {0, 1}) {
      World world;
      world.tuning_path_of = [&](int rank) { return rank == odd ? one : other; };
      world.log_level = "warning";
      ::testing::internal::CaptureStderr();
      run_ranks(world, [](Communicator& c) {
        const std::string ran = run_all_reduce(c, 4096);
        EXPECT_NE(ran, "ring");
        EXPECT_NE(ran, "direct");
      });
      const std::string said = ::testing::internal::GetCapturedStderr();
      const std::string& first = odd == 0 ? one : other;
      const std::string& second = odd == 0 ? other : one;
      EXPECT_NE(said.find("(TUTTI_TUNING_PATH) is " + first + " on rank 0 and " + second + " on rank 1: none is used"),
                std::string::npos)
          << said;
    }
  }
}

TEST(TunedGroup, HostsGoUntuned) {
  const TemporaryFolder here;
  const std::string file = here.write("table.json", table("direct"));
  World world;
  world.host_of = [](int rank) { return "host" + std::to_string(rank); };
  std::string untuned;
  run_ranks(world, [&](Communicator& c) {
    const std::string ran = run_all_reduce(c, 4096);
    if (c.rank() == 0) untuned = ran;
  });
  world.tuning_path_of = [&](int) { return file; };
  run_ranks(world, [&](Communicator& c) { EXPECT_EQ(run_all_reduce(c, 4096), untuned); });
}

TEST(TunedGroup, ABrokenTableIsNamedWhenTheGroupIsMade) {
  const TemporaryFolder here;
  std::string text = table("ring");
  text.replace(text.find("65536"), 5, "true");
  const std::string file = here.write("table.json", text);
  MemoryStore store;
  CommunicatorOptions options;
  options.config.tuning_path = file;
  const Error error = error_of([&] { Communicator::create(store, "test", 0, 2, options); });
  EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
  EXPECT_EQ(error.what(), "TUTTI_TUNING_PATH: " + file + ": /cells/1/bytes: an integer is expected");
}

}  // namespace
}  // namespace tutti::test
