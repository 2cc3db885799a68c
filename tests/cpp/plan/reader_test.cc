// The reader takes what MSCCL++ writes, and names the place of every fault.
#include "plan/reader.h"

#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "plan/plan_builder.h"
#include "plan/writer.h"
#include "support/refusal.h"

namespace tutti::plan {
namespace {

using Json = nlohmann::json;

// Two ranks; rank 0 puts to rank 1, both signal and wait.
Json small_plan() {
  PlanBuilder builder(PlanCollective::kAllGather, 2, 1, 2, 1);
  for (int r = 0; r < 2; ++r) {
    builder.plan.ranks[r].semaphores = {0};
    builder.at(r, 1);
    builder.at(r).put(1 - r, local(kI, 0), kO, r).nop().signal(1 - r).wait(1 - r).release(0);
    builder.at(r, 1).acquire(0).copy(local(kI, 0), local(kO, r)).barrier(0, 1);
  }
  return Json::parse(write_plan(builder.plan));
}

std::string error_of(const std::string& text) {
  return test::refusal([&] { read_plan(text); });
}

std::string error_after(const std::function<void(Json&)>& change) {
  Json plan = small_plan();
  change(plan);
  return error_of(plan.dump());
}

Json& ops(Json& plan, int rank, int block = 0) { return plan["gpus"][rank]["threadblocks"][block]["ops"]; }

void expect_at(const std::string& error, const std::string& path) {
  EXPECT_EQ(error.rfind("plan: " + path + ": ", 0), 0u) << "expected " << path << ", got: " << error;
}

TEST(Reader, TakesAWholePlan) {
  const Plan plan = read_plan(small_plan().dump());
  ASSERT_EQ(plan.ranks.size(), 2u);
  EXPECT_EQ(plan.collective, PlanCollective::kAllGather);
  EXPECT_EQ(plan.ranks[1].blocks.size(), 2u);
  EXPECT_EQ(plan.ranks[0].blocks[0].operations[0].kind, OpKind::kPut);
  EXPECT_EQ(plan.ranks[0].blocks[0].operations[0].destinations[0].index, 0);
}

TEST(Reader, DefaultsAreMscclpps) {
  Json text = small_plan();
  for (const char* key : {"version", "num_threads_per_block", "use_double_scratch_buffer", "buffer_alignment",
                          "min_message_size", "max_message_size", "reuse_resources"}) {
    text.erase(key);
  }
  const Plan plan = read_plan(text.dump());
  EXPECT_EQ(plan.threads_per_block, 1024);
  EXPECT_EQ(plan.buffer_alignment, 16);
  EXPECT_FALSE(plan.double_scratch);
  EXPECT_EQ(plan.max_message_bytes, UINT64_MAX);
  EXPECT_EQ(plan.version, kPlanVersion);
}

TEST(Reader, ReadsTheMulticastFormWithoutOperandLists) {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 2, 2, 0);
  for (int r = 0; r < 2; ++r) {
    Operation op;
    op.kind = OpKind::kGroupLoadReduce;
    op.channel = ChannelKind::kSwitch;
    op.sources = {builder.at(r).group(kI, r)};
    op.destinations = {local(kO, r)};
    builder.at(r).add(op);
  }
  Json text = Json::parse(write_plan(builder.plan));
  for (int r = 0; r < 2; ++r) {
    ops(text, r)[0] = {{"name", "glre"},
                       {"buffer_type", "i"},
                       {"buffer_offset", r},
                       {"size", 1},
                       {"dst_chunk", {{"rank", r}, {"type", "o"}, {"index", r}, {"size", 1}}},
                       {"channel_ids", {0}},
                       {"channel_type", "switch"},
                       {"reduce_op", "sum"}};
  }
  EXPECT_EQ(read_plan(text.dump()).ranks, builder.plan.ranks);
  ops(text, 1)[0]["dst_chunk"]["rank"] = 0;
  expect_at(error_of(text.dump()), "/gpus/1/threadblocks/0/ops/0/dst_chunk/rank");
}

// A group of thread blocks may share what awaits its packets before it sends them, and no other transfer through ports.
TEST(Reader, ReadsPartsOfWhatIsForwardedThroughPorts) {
  const Plan plan = port_packets_in_parts(2);
  Json text = Json::parse(write_plan(plan));
  EXPECT_EQ(read_plan(text.dump()).ranks, plan.ranks);
  ops(text, 0)[1]["name"] = "ppkt";
  expect_at(error_of(text.dump()), "/gpus/0/threadblocks/0/ops/1/tbg_info");
}

TEST(Reader, RefusesTextThatIsNoPlan) {
  for (const char* text : {"", "[]", "null", "{", "{\"gpus\": 3}", "{\"gpus\": []}", "{\"name\": \"a\"}", "\xff\xfe"}) {
    EXPECT_NE(error_of(text), "") << text;
  }
  EXPECT_NE(error_of(small_plan().dump() + "x").find("not JSON at byte"), std::string::npos);
  EXPECT_NE(error_of(small_plan().dump() + std::string(1, '\0')).find("not JSON at byte"), std::string::npos);
}

TEST(Reader, BoundsDepth) {
  const std::string deep = "{\"gpus\": " + std::string(100000, '[');
  EXPECT_NE(error_of(deep).find("nested too deeply"), std::string::npos);
}

TEST(Reader, RefusesKeysThatComeTwice) {
  std::string text = small_plan().dump();
  const std::string id = "\"input_chunks\":1";
  text.insert(text.find(id), "\"input_chunks\":2,");
  expect_at(error_of(text), "/gpus/0/input_chunks");
}

TEST(Reader, RefusesUnknownKeysAndNames) {
  expect_at(error_after([](Json& p) { p["nmae"] = 1; }), "/nmae");
  expect_at(error_after([](Json& p) { p["gpus"][1]["extra"] = 1; }), "/gpus/1/extra");
  expect_at(error_after([](Json& p) { ops(p, 0)[0]["extra"] = 1; }), "/gpus/0/threadblocks/0/ops/0/extra");
  expect_at(error_after([](Json& p) { ops(p, 1)[3]["name"] = "wiat"; }), "/gpus/1/threadblocks/0/ops/3/name");
  expect_at(error_after([](Json& p) { p["protocol"] = "LL128"; }), "/protocol");
  expect_at(error_after([](Json& p) { p["version"] = 99; }), "/version");
}

TEST(Reader, RefusesNumbersOutOfRange) {
  const std::string put = "/gpus/1/threadblocks/0/ops/0";
  for (const auto& bad : {Json(-1), Json(1.5), Json("0"), Json(UINT64_MAX), Json(nullptr), Json(true)}) {
    expect_at(error_after([&](Json& p) { ops(p, 1)[0]["src_buff"][0]["index"] = bad; }), put + "/src_buff/0/index");
  }
  expect_at(error_after([](Json& p) { ops(p, 1)[0]["src_buff"][0]["index"] = 1; }), put + "/src_buff/0/index");
  expect_at(error_after([](Json& p) { ops(p, 1)[0]["dst_buff"][0]["buffer_id"] = 7; }), put + "/dst_buff/0/buffer_id");
  expect_at(error_after([](Json& p) { ops(p, 1)[2]["channel_ids"] = {4}; }),
            "/gpus/1/threadblocks/0/ops/2/channel_ids");
  expect_at(error_after([](Json& p) { ops(p, 0)[4]["semaphore_ids"] = {1}; }),
            "/gpus/0/threadblocks/0/ops/4/semaphore_ids");
  expect_at(error_after([](Json& p) { p["gpus"][0]["channels"][0]["connected_to"] = {9}; }), "/gpus/0/channels");
  expect_at(error_after([](Json& p) { p["gpus"][0]["channels"][0]["connected_to"] = {0}; }), "/gpus/0/channels");
  expect_at(error_after([](Json& p) { p["gpus"][1]["id"] = 0; }), "/gpus/1/id");
  expect_at(error_after([](Json& p) { p["gpus"][1]["output_chunks"] = 3; }), "/gpus/1/output_chunks");
}

// Nothing follows from the channels of an operation that moves data through memory, but they must be there.
TEST(Reader, LooksAtEveryChannelThatIsNamed) {
  const auto name_channel = [](int id) { return [id](Json& p) { ops(p, 0)[0]["channel_ids"] = {id}; }; };
  EXPECT_EQ(error_after(name_channel(0)), "");
  const std::string error = error_after(name_channel(99));
  expect_at(error, "/gpus/0/threadblocks/0/ops/0/channel_ids");
  EXPECT_NE(error.find("99 names no memory channel of this thread block; there are 1"), std::string::npos) << error;
}

TEST(Reader, RefusesOperationsOfTheWrongShape) {
  const std::string put = "/gpus/0/threadblocks/0/ops/0";
  expect_at(error_after([](Json& p) { ops(p, 0)[0].erase("dst_buff"); }), put);
  expect_at(error_after([](Json& p) { ops(p, 0)[0]["src_buff"][0]["size"] = 2; }), put + "/dst_buff/0/size");
  expect_at(error_after([](Json& p) { ops(p, 0)[0]["channel_type"] = "port"; }), put);
  expect_at(error_after([](Json& p) { ops(p, 0)[0]["name"] = "get"; }), put + "/src_buff/0");
  expect_at(error_after([](Json& p) { ops(p, 0)[2].erase("channel_ids"); }), "/gpus/0/threadblocks/0/ops/2");
}

TEST(Reader, RefusesCountersWithoutTwoEnds) {
  // Rank 1 loses its channel to rank 0: rank 0's signal would reach nobody.
  const std::string unpaired = error_after([](Json& p) {
    p["gpus"][1]["channels"] = Json::array();
    p["gpus"][1]["threadblocks"][0]["channels"] = Json::array();
    ops(p, 1) = Json::array();
    ops(p, 1, 1) = Json::array();
  });
  EXPECT_NE(unpaired.find("unpaired"), std::string::npos) << unpaired;
  expect_at(unpaired, "/gpus/0/threadblocks/0/ops/2/channel_ids");
  const std::string two = error_after([](Json& p) {
    p["gpus"][0]["threadblocks"][1]["channels"] = p["gpus"][0]["threadblocks"][0]["channels"];
    ops(p, 0, 1).push_back(ops(p, 0)[2]);
  });
  EXPECT_NE(two.find("thread blocks 0 and 1 both signal"), std::string::npos) << two;
  expect_at(error_after([](Json& p) { ops(p, 0, 1)[2]["num_threadblocks"] = 2; }),
            "/gpus/0/threadblocks/1/ops/2/num_threadblocks");
}

TEST(Reader, RefusesPacketsOutsideScratchAndInLoops) {
  PlanBuilder builder(PlanCollective::kAllReduce, 1, 1, 1, 1);
  builder.at(0).move(OpKind::kCopyPackets, {local(kI, 0)}, {local(kS, 0)});
  Json text = Json::parse(write_plan(builder.plan));
  EXPECT_EQ(error_of(text.dump()), "");
  Json looped = text;
  ops(looped, 0)[0] = {
      {"name", "pipeline"}, {"iter_context", {{"unit_size", 1024}, {"num_chunks", 1}}}, {"ops", {ops(text, 0)[0]}}};
  expect_at(error_of(looped.dump()), "/gpus/0/threadblocks/0/ops/0/ops/0");
  ops(text, 0)[0]["dst_buff"][0]["type"] = "o";
  expect_at(error_of(text.dump()), "/gpus/0/threadblocks/0/ops/0/dst_buff/0");
}

}  // namespace
}  // namespace tutti::plan
