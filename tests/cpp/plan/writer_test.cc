// What is written reads back equal; what MSCCL++'s executor cannot hold is not exported.
#include "plan/writer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

using Json = nlohmann::json;

Plan complete(Plan plan) {
  plan.reduce = common_reduction(plan);
  return plan;
}

TEST(Writer, RoundTrips) {
  for (Plan plan : {ring_all_reduce(2), ring_all_reduce(5), all_pairs_all_gather(4), packet_all_reduce(3),
                    doubling_all_reduce(8), tree_all_reduce(7)}) {
    plan = complete(std::move(plan));
    plan.source = "a \"quoted\" \"gpus\": [] name";
    plan.ranks[0].blocks[0].operations[0].origin = "program.py:12";
    for (const int indent : {-1, 0, 2}) EXPECT_EQ(read_plan(write_plan(plan, indent)), plan);
  }
}

TEST(Writer, RoundTripsEveryKindOfThing) {
  PlanBuilder builder(PlanCollective::kBroadcast, 2, 2, 2, 2);
  builder.plan.root = 1;
  builder.plan.min_message_bytes = 16;
  builder.plan.max_message_bytes = std::uint64_t{1} << 60;
  builder.plan.ranks[1].semaphores = {3};
  const auto block = builder.at(1);
  block.put_port(OpKind::kPutWithSignalAndFlush, 0, local(kI, 0), kO, 0).acquire(0).release(0).flush(0);
  builder.at(0).port_wait(1).barrier(2, 1);
  Operation split;
  split.kind = OpKind::kCopy;
  split.sources = {local(kI, 0, 2)};
  split.destinations = {local(kO, 0, 2)};
  split.part = GroupPart{1, 3};
  block.add(split);
  Operation loop;
  loop.kind = OpKind::kPipeline;
  loop.iteration = {4096, 2};
  split.part.reset();
  loop.body = {split, Operation{}};
  block.add(loop);
  Operation store;
  store.kind = OpKind::kGroupStore;
  store.channel = ChannelKind::kSwitch;
  for (int r = 0; r < 2; ++r) {
    store.sources = {local(kI, 1)};
    store.destinations = {builder.at(r).group(kO, 1)};
    builder.at(r).add(store);
  }
  EXPECT_EQ(read_plan(write_plan(builder.plan)), complete(builder.plan));
}

TEST(Export, LeavesOutWhatMscclppDoesNotKnow) {
  Plan plan = complete(packet_all_reduce(2));
  plan.source = "here";
  plan.ranks[0].blocks[0].operations[0].origin = "program.py:12";
  const Json text = Json::parse(export_mscclpp(plan));
  EXPECT_FALSE(text.contains("version"));
  EXPECT_FALSE(text.contains("source"));
  EXPECT_FALSE(text["gpus"][0]["threadblocks"][0]["ops"][0].contains("origin"));
  plan.source.clear();
  plan.ranks[0].blocks[0].operations[0].origin.clear();
  EXPECT_EQ(read_plan(text.dump()), plan);
}

TEST(Export, ChecksThatExecutorsLimits) {
  const auto refusal = [](const Plan& plan) {
    try {
      export_mscclpp(plan);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(refusal(ring_all_reduce(16)).find("64 operations"), std::string::npos);
  Plan maximum = packet_all_reduce(2);
  maximum.ranks[1].blocks[0].operations[1].reduce = ReduceKind::kMax;
  EXPECT_NE(refusal(maximum).find("/gpus/1/threadblocks/0/ops/1/reduce_op"), std::string::npos);
  EXPECT_NE(refusal(packet_all_reduce(20)).find("16 remote buffers"), std::string::npos);
  Plan scribbles = packet_all_reduce(2);
  scribbles.in_place = false;
  scribbles.writes_input = true;
  EXPECT_NE(refusal(scribbles).find("/writes_input"), std::string::npos);
  EXPECT_EQ(refusal(packet_all_reduce(8)), "");
}

}  // namespace
}  // namespace tutti::plan
