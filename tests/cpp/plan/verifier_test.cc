// The verifier accepts what is right, rejects every class of what is wrong, and says why.
#include "plan/verifier/verifier.h"

#include <gtest/gtest.h>

#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "plan/cases.h"
#include "plan/limits.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/sizes.h"
#include "plan/structure.h"
#include "plan/verifier/verdict_text.h"
#include "plan/writer.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

// As a plan comes from a file.
Plan loaded(const Plan& plan) { return read_plan(write_plan(plan, -1)); }

TEST(Verifier, AcceptsWhatIsRight) {
  for (const Case& c : right_cases()) {
    const Verdict verdict = verify(loaded(c.plan));
    EXPECT_EQ(verdict.outcome, Outcome::kProven) << c.name << ": " << verdict.fault.message;
    EXPECT_TRUE(verdict.repairs.empty()) << c.name;
  }
}

TEST(Verifier, RejectsWhatIsWrongAndSaysWhy) {
  for (const Case& c : wrong_cases()) {
    const Verdict verdict = verify(loaded(c.plan));
    EXPECT_EQ(verdict.outcome, Outcome::kRejected) << c.name;
    EXPECT_EQ(verdict.fault.kind, c.fault) << c.name << ": " << verdict.fault.message;
    EXPECT_NE(verdict.fault.message.find(c.says), std::string::npos) << c.name << ": " << verdict.fault.message;
  }
}

TEST(Verifier, RepairsOrderAndOnlyThat) {
  for (const Case& c : repairable_cases()) {
    const Plan plan = loaded(c.plan);
    const Verdict strict = verify_strictly(plan);
    EXPECT_EQ(strict.outcome, Outcome::kRejected) << c.name;
    EXPECT_EQ(strict.fault.kind, c.fault) << c.name;
    EXPECT_NE(strict.fault.message.find(c.says), std::string::npos) << c.name << ": " << strict.fault.message;
    const Verdict verdict = verify(plan);
    EXPECT_EQ(verdict.outcome, c.outcome) << c.name << ": " << verdict.fault.message;
    EXPECT_FALSE(verdict.repairs.empty()) << c.name;
    EXPECT_EQ(verify_strictly(repaired(plan, verdict.repairs)).outcome, Outcome::kProven) << c.name;
  }
}

// The pair that says "you may write" stays relaxed; only the pair that publishes data changes.
TEST(Verifier, RepairsNoMoreThanItMust) {
  for (const Case& c : repairable_cases()) {
    if (c.name != "relaxed") continue;
    const Verdict verdict = verify(c.plan);
    ASSERT_EQ(verdict.repairs.size(), 2u);
    std::set<Repair::Kind> kinds;
    for (const Repair& repair : verdict.repairs) kinds.insert(repair.kind);
    EXPECT_EQ(kinds, (std::set<Repair::Kind>{Repair::Kind::kSignal, Repair::Kind::kWait}));
    EXPECT_EQ(repaired(c.plan, verdict.repairs).ranks[1].blocks[0].operations[0].kind, OpKind::kRelaxedSignal);
  }
}

TEST(Verifier, NamesTheProgramLine) {
  Plan plan = ring_all_reduce(3);
  for (Rank& rank : plan.ranks) {
    auto& operations = rank.blocks[0].operations;
    for (std::size_t i = 0; i < operations.size(); ++i) operations[i].origin = "ring.py:" + std::to_string(i);
  }
  // Rank 1's first data signal goes before its put.
  auto& operations = plan.ranks[1].blocks[0].operations;
  std::swap(operations[3], operations[5]);
  const Verdict verdict = verify(plan);
  EXPECT_EQ(verdict.outcome, Outcome::kRejected);
  ASSERT_EQ(verdict.fault.sites.size(), 2u) << verdict.fault.message;
  EXPECT_NE(verdict.fault.message.find("ring.py:3"), std::string::npos) << verdict.fault.message;
}

TEST(Verifier, ReportsTheCycleOfADeadlock) {
  PlanBuilder builder(PlanCollective::kCustom, 3, 1, 1, 0);
  for (int r = 0; r < 3; ++r) builder.at(r).wait((r + 1) % 3).signal((r + 2) % 3);
  const Verdict verdict = verify(builder.plan);
  EXPECT_EQ(verdict.fault.kind, FaultKind::kDeadlock);
  std::set<std::int32_t> ranks;
  for (const Site& site : verdict.fault.sites) ranks.insert(site.rank);
  EXPECT_EQ(ranks.size(), 3u);
}

TEST(Verifier, ReportsTokensLeftOver) {
  PlanBuilder builder(PlanCollective::kCustom, 2, 1, 1, 0);
  builder.at(0).signal(1).signal(1);
  builder.at(1).wait(0);
  const Verdict verdict = verify(builder.plan);
  EXPECT_EQ(verdict.fault.kind, FaultKind::kLeftover);
  EXPECT_NE(verdict.fault.message.find("memory channel 0 from rank 0"), std::string::npos) << verdict.fault.message;
}

TEST(Verifier, TellsWhetherRanksGetTheSameBits) {
  EXPECT_TRUE(verify(ring_all_reduce(5)).same_bits);
  EXPECT_TRUE(verify(doubling_all_reduce(8)).same_bits);
  // Every rank begins with its own input: three ranks, three orders.
  EXPECT_FALSE(verify(packet_all_reduce(3)).same_bits);
  EXPECT_TRUE(verify(packet_all_reduce(2)).same_bits);
}

TEST(Verifier, KnowsTheReductionsApart) {
  Plan plan = ring_all_reduce(3);
  for (Operation& op : plan.ranks[2].blocks[0].operations) {
    if (op.kind == OpKind::kReduce) op.reduce = ReduceKind::kMax;
  }
  EXPECT_EQ(verify(plan).fault.kind, FaultKind::kWrongResult);
}

// Two chunks, each of them reduced on both ranks: the first by sums, the second as `second` says.
Plan two_reductions(ReduceKind second) {
  PlanBuilder builder(PlanCollective::kAllReduce, 2, 2, 2, 2);
  builder.plan.double_scratch = true;
  for (std::int32_t r = 0; r < 2; ++r) {
    for (std::int32_t chunk = 0; chunk < 2; ++chunk) {
      const auto block = builder.at(r, chunk);
      block.move_memory(OpKind::kPutPackets, {local(kI, chunk)},
                        {block.remote(ChannelKind::kMemory, 1 - r, kS, chunk)});
      block.move(OpKind::kReducePackets, {local(kI, chunk), local(kS, chunk)}, {local(kO, chunk)});
      block.operations().back().reduce = chunk == 0 ? ReduceKind::kSum : second;
    }
  }
  return builder.plan;
}

TEST(Verifier, RefusesAMixOfReductions) {
  EXPECT_EQ(verify(loaded(two_reductions(ReduceKind::kSum))).outcome, Outcome::kProven);
  const Verdict verdict = verify(loaded(two_reductions(ReduceKind::kMax)));
  EXPECT_EQ(verdict.fault.kind, FaultKind::kWrongResult);
  EXPECT_NE(verdict.fault.message.find("no caller asks for both"), std::string::npos) << verdict.fault.message;
}

TEST(Verifier, SaysWhatItHasChecked) {
  PlanBuilder builder(PlanCollective::kCustom, 2, 1, 1, 0);
  const Verdict custom = verify(loaded(builder.plan));
  EXPECT_EQ(custom.outcome, Outcome::kProven) << custom.fault.message;
  EXPECT_FALSE(custom.checked);
  EXPECT_TRUE(verify(ring_all_reduce(3)).checked);
  builder.plan.collective_name = "alreduce";
  const Verdict misspelt = verify(loaded(builder.plan));
  EXPECT_EQ(misspelt.outcome, Outcome::kRejected);
  EXPECT_EQ(misspelt.fault.kind, FaultKind::kUnchecked);
  EXPECT_NE(misspelt.fault.message.find("\"alreduce\""), std::string::npos) << misspelt.fault.message;
}

// One thread block uses scratch for one thing and then for another; a second block writes the other thing too, but at
// any time.
Plan same_value_from_two(int first, int second) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 2, 2, 1);
  builder.at(0, 1);
  builder.at(0, first).copy(local(kI, 0), local(kS, 0)).nop().copy(local(kS, 0), local(kO, 0)).nop();
  builder.at(0, first).copy(local(kI, 1), local(kS, 0)).nop().copy(local(kS, 0), local(kO, 1));
  builder.at(0, second).copy(local(kI, 1), local(kS, 0));
  return builder.plan;
}

TEST(Verifier, TheSameValueIsARaceWithWhatWasThereBefore) {
  for (const int first : {0, 1}) {
    const Verdict verdict = verify(loaded(same_value_from_two(first, 1 - first)));
    EXPECT_EQ(verdict.outcome, Outcome::kRejected) << first;
    EXPECT_EQ(verdict.fault.kind, FaultKind::kRace) << verdict.fault.message;
  }
}

// One thread block uses scratch for one thing and then for another. A second one writes the other thing too: it reads
// it then, or has waited for the first thing, but not for who reads that.
Plan same_value_after(bool written, int first, int second) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 2, 2, 1);
  builder.plan.ranks[0].semaphores = {0};
  builder.at(0, 1);
  const auto one = builder.at(0, first);
  const auto other = builder.at(0, second);
  one.copy(local(kI, 0), local(kS, 0)).nop();
  if (written) {
    one.release(0).copy(local(kS, 0), local(kO, 0)).nop().copy(local(kI, 1), local(kS, 0)).nop();
    one.copy(local(kS, 0), local(kO, 1));
    other.acquire(0).nop().copy(local(kI, 1), local(kS, 0));
  } else {
    one.copy(local(kI, 0), local(kO, 0)).copy(local(kI, 1), local(kS, 0)).release(0);
    other.copy(local(kI, 1), local(kS, 0)).nop().copy(local(kS, 0), local(kO, 1)).acquire(0);
  }
  return builder.plan;
}

TEST(Verifier, TheSameValueComesAfterWhoWroteAndWhoReadTheOneBefore) {
  for (const bool written : {false, true}) {
    for (const int first : {0, 1}) {
      const Verdict verdict = verify(loaded(same_value_after(written, first, 1 - first)));
      EXPECT_EQ(verdict.outcome, Outcome::kRejected) << written << first;
      EXPECT_EQ(verdict.fault.kind, FaultKind::kRace) << verdict.fault.message;
    }
  }
}

// Operations that begin at different places put one element on different lanes.
TEST(Verifier, LanesAreJoinedBeforeAnotherReads) {
  for (const bool joined : {true, false}) {
    PlanBuilder builder(PlanCollective::kBroadcast, 1, 2, 2, 2);
    builder.at(0).copy(local(kI, 0, 2), local(kS, 0, 2));
    if (joined) builder.at(0).nop();
    builder.at(0).copy(local(kS, 0), local(kO, 0)).copy(local(kS, 1), local(kO, 1));
    const Verdict verdict = verify(loaded(builder.plan));
    EXPECT_EQ(verdict.outcome, joined ? Outcome::kProven : Outcome::kRejected) << verdict.fault.message;
    EXPECT_EQ(verdict.fault.kind, joined ? FaultKind::kNone : FaultKind::kRace) << verdict.fault.message;
  }
}

// Rank 0's two thread blocks put into rank 1's scratch through one port channel; rank 2 reads what the first has put.
// Where that lies depends on the size of a call, so the second must wait for rank 2 as well.
Plan port_of_two_blocks(bool second_waits_for_reader) {
  PlanBuilder builder(PlanCollective::kCustom, 3, 2, 2, 2);
  const auto first = builder.at(0, 0);
  const auto second = builder.at(0, 1);
  const auto owner = builder.at(1);
  const auto reader = builder.at(2);
  reader.signal(0, 0);
  if (second_waits_for_reader) reader.signal(0, 1);
  owner.signal(0, 0).signal(0, 1).port_wait(0).nop().copy(local(kS, 1), local(kO, 1)).signal(2);
  reader.wait(1).nop();
  reader.move_memory(OpKind::kGet, {reader.remote(ChannelKind::kMemory, 1, kS, 0)}, {local(kO, 0)});
  second.wait(1, 1);
  if (second_waits_for_reader) second.wait(2, 1);
  second.nop().put_port(OpKind::kPut, 1, local(kI, 1), kS, 1).barrier(0, 2).flush(1);
  first.wait(2, 0).wait(1, 0).nop().put_port(OpKind::kPut, 1, local(kI, 0), kS, 0).barrier(0, 2);
  first.port_signal(1).flush(1);
  return builder.plan;
}

TEST(Verifier, EveryUseOfScratchComesAfterThoseOfTheCallBefore) {
  const Verdict right = verify(loaded(port_of_two_blocks(true)));
  EXPECT_EQ(right.outcome, Outcome::kProven) << right.fault.message;
  const Verdict wrong = verify(loaded(port_of_two_blocks(false)));
  EXPECT_EQ(wrong.outcome, Outcome::kRejected);
  EXPECT_NE(wrong.fault.message.find("scratch"), std::string::npos) << wrong.fault.message;
}

// Rank 0 puts two chunks into rank 1's scratch through one port channel. The first lane has waited for all who read
// them, the second for the reader of its own chunk, and when joined for the other too: in a call of another size that
// chunk may have lain where its own lies now.
Plan port_of_two_lanes(bool joined) {
  PlanBuilder builder(PlanCollective::kCustom, 3, 2, 2, 2);
  const auto writer = builder.at(0);
  const auto owner = builder.at(1);
  const auto reader = builder.at(2);
  reader.signal(0);
  owner.signal(0, 0).signal(0, 1).port_wait(0).nop().copy(local(kS, 1), local(kO, 1)).signal(2);
  reader.wait(1).nop();
  reader.move_memory(OpKind::kGet, {reader.remote(ChannelKind::kMemory, 1, kS, 0)}, {local(kO, 0)});
  writer.wait(1, 0).wait(2);
  writer.operations().back().channel_ids.push_back(writer.channel(ChannelKind::kMemory, 1, 1));
  if (joined) writer.nop();
  writer.put_port(OpKind::kPut, 1, local(kI, 0), kS, 0);
  Operation& put = writer.operations().back();
  put.sources.push_back(local(kI, 1));
  put.destinations.push_back(writer.remote(ChannelKind::kPort, 1, kS, 1));
  put.channel_ids.push_back(put.channel_ids.front());
  writer.nop().port_signal(1).flush(1);
  return builder.plan;
}

TEST(Verifier, EveryLanesUseOfScratchComesAfterThoseOfTheCallBefore) {
  const Verdict right = verify(loaded(port_of_two_lanes(true)));
  EXPECT_EQ(right.outcome, Outcome::kProven) << right.fault.message;
  const Verdict wrong = verify_strictly(loaded(port_of_two_lanes(false)));
  EXPECT_EQ(wrong.outcome, Outcome::kRejected);
  EXPECT_NE(wrong.fault.message.find("'s scratch, and"), std::string::npos) << wrong.fault.message;
}

// Rank 1 says by a packet that it has read, in the call before, what rank 0's scratch held. The packet tells the lane
// that takes it; what the others write into scratch, wherever, comes after a join.
Plan packet_for_one_lane(bool joined) {
  PlanBuilder builder(PlanCollective::kCustom, 2, 2, 2, 3);
  const auto owner = builder.at(0);
  const auto reader = builder.at(1);
  owner.signal(1, 0).move(OpKind::kUnpackPackets, {local(kS, 0)}, {local(kO, 0)});
  if (joined) owner.nop();
  owner.copy(local(kI, 0), local(kS, 2)).nop().copy(local(kI, 1), local(kS, 1)).nop().signal(1, 1);
  reader.wait(0, 0).nop();
  reader.move_memory(OpKind::kPutPackets, {local(kI, 0)}, {reader.remote(ChannelKind::kMemory, 0, kS, 0)});
  reader.wait(0, 1).nop();
  reader.move_memory(OpKind::kGet, {reader.remote(ChannelKind::kMemory, 0, kS, 1)}, {local(kO, 0)});
  return builder.plan;
}

TEST(Verifier, WhatAPacketTellsOneLaneTheOthersDoNotKnow) {
  const Verdict right = verify_strictly(loaded(packet_for_one_lane(true)));
  EXPECT_EQ(right.outcome, Outcome::kProven) << right.fault.message;
  const Verdict wrong = verify_strictly(loaded(packet_for_one_lane(false)));
  EXPECT_EQ(wrong.outcome, Outcome::kRejected);
  EXPECT_NE(wrong.fault.message.find("'s scratch, and"), std::string::npos) << wrong.fault.message;
}

// An input is the caller's, unless the plan is in place or says that it writes inputs.
TEST(Verifier, ProtectsTheInput) {
  PlanBuilder builder(PlanCollective::kBroadcast, 1, 2, 2, 0);
  builder.at(0).copy(local(kI, 0, 2), local(kO, 0, 2)).nop().copy(local(kO, 0), local(kI, 1));
  const Plan plan = loaded(builder.plan);
  EXPECT_EQ(verify_strictly(plan).fault.kind, FaultKind::kInput);
  const Verdict verdict = verify(plan);
  EXPECT_EQ(verdict.outcome, Outcome::kProvenAfterRepair) << verdict.fault.message;
  EXPECT_EQ(verdict.fault.kind, FaultKind::kInput);
  ASSERT_EQ(verdict.repairs.size(), 1U);
  EXPECT_EQ(verdict.repairs[0].kind, Repair::Kind::kInput);
  const Plan declared = repaired(plan, verdict.repairs);
  EXPECT_TRUE(loaded(declared).writes_input);
  EXPECT_EQ(verify_strictly(declared).outcome, Outcome::kProven);
  const auto kept = read_verdict(write_verdict(verdict, "subject"), "subject");
  ASSERT_TRUE(kept);
  EXPECT_EQ(kept->repairs, verdict.repairs);
}

// By a loop, through a channel, or to all ranks at once.
TEST(Verifier, ProtectsTheInputWhereverItIsWritten) {
  const auto fault = [](const PlanBuilder& builder) { return verify_strictly(loaded(builder.plan)).fault; };
  PlanBuilder looping(PlanCollective::kCustom, 1, 1, 1, 0);
  Operation copy;
  copy.kind = OpKind::kCopy;
  copy.sources = {local(kO, 0)};
  copy.destinations = {local(kI, 0)};
  Operation loop;
  loop.kind = OpKind::kPipeline;
  loop.iteration = {1 << 20, 1};
  loop.body = {Operation{}, copy};
  looping.at(0).add(loop);
  EXPECT_EQ(fault(looping).kind, FaultKind::kInput) << fault(looping).message;
  EXPECT_NE(fault(looping).message.find("operation 0.1 (copy)"), std::string::npos) << fault(looping).message;
  PlanBuilder putting(PlanCollective::kCustom, 2, 1, 1, 0);
  putting.at(0).put(1, local(kI, 0), kI, 0).nop().signal(1);
  putting.at(1).wait(0);
  EXPECT_EQ(fault(putting).kind, FaultKind::kInput) << fault(putting).message;
  PlanBuilder storing(PlanCollective::kCustom, 2, 2, 2, 0);
  for (int r = 0; r < 2; ++r) {
    const auto block = storing.at(r);
    Operation op;
    op.kind = OpKind::kGroupLoadReduceStore;
    op.channel = ChannelKind::kSwitch;
    op.sources = {block.group(kI, r)};
    op.destinations = {block.group(kI, r)};
    block.add(op);
  }
  EXPECT_EQ(fault(storing).kind, FaultKind::kInput) << fault(storing).message;
}

// A rank of a send_recv gets all of one rank's input, and no other rank gets that.
TEST(Verifier, AMessageHasOneSenderAndOneReceiver) {
  PlanBuilder twice(PlanCollective::kSendRecv, 2, 1, 1, 0);
  twice.at(0).wait(1).nop().put(1, local(kI, 0), kO, 0).copy(local(kI, 0), local(kO, 0)).nop().signal(1);
  twice.at(1).signal(0).wait(0);
  const Verdict two_receivers = verify(loaded(twice.plan));
  EXPECT_EQ(two_receivers.fault.kind, FaultKind::kWrongResult);
  EXPECT_NE(two_receivers.fault.message.find("has received rank 0's input already"), std::string::npos)
      << two_receivers.fault.message;
  PlanBuilder halves(PlanCollective::kSendRecv, 2, 2, 2, 0);
  for (int r = 0; r < 2; ++r) {
    halves.at(r).signal(1 - r).wait(1 - r).nop().put(1 - r, local(kI, 1), kO, 1).copy(local(kI, 0), local(kO, 0));
    halves.at(r).nop().signal(1 - r).wait(1 - r);
  }
  const Verdict two_senders = verify(loaded(halves.plan));
  EXPECT_EQ(two_senders.fault.kind, FaultKind::kWrongResult);
  EXPECT_NE(two_senders.fault.message.find("sent the chunks before"), std::string::npos) << two_senders.fault.message;
}

// A loop without credits is right as long as its scratch need not be a ring; a larger message is refused, not run.
TEST(Verifier, LimitsTheSizeWhereOnlyLargerMessagesRace) {
  for (const Case& c : repairable_cases()) {
    if (c.name != "no_credits") continue;
    const Verdict verdict = verify(c.plan);
    ASSERT_EQ(verdict.repairs.size(), 1U);
    EXPECT_EQ(verdict.repairs[0].kind, Repair::Kind::kSize);
    EXPECT_EQ(verdict.repairs[0].bytes, kReusedScratchBytes);
    EXPECT_EQ(describe(verdict.repairs[0]),
              "all ranks: max_message_size becomes 67108864, past which loops would use scratch anew");
    Plan plan = repaired(c.plan, verdict.repairs);
    EXPECT_EQ(plan.max_message_bytes, static_cast<std::uint64_t>(kReusedScratchBytes));
    EXPECT_NO_THROW(Sizes(plan, kReusedScratchBytes));
    EXPECT_THROW(Sizes(plan, kReusedScratchBytes + 16), Error);
    EXPECT_NO_THROW(Sizes(c.plan, kReusedScratchBytes + 16));
    const auto kept = read_verdict(write_verdict(verdict, "subject"), "subject");
    ASSERT_TRUE(kept);
    EXPECT_EQ(kept->repairs, verdict.repairs);
    ++plan.max_message_bytes;
    EXPECT_EQ(verify_strictly(plan).outcome, Outcome::kRejected);
    plan.min_message_bytes = plan.max_message_bytes;  // no smaller message to limit it to
    EXPECT_EQ(verify(plan).outcome, Outcome::kRejected);
    return;
  }
  FAIL() << "the case is missing";
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  EXPECT_TRUE(in.good()) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

// Plans in files, each with its verdict in verdicts.json.
TEST(Verifier, AgreesWithTheTableOfVerdicts) {
  const std::filesystem::path folder = TUTTI_TEST_PLANS;
  const auto table = nlohmann::json::parse(text_of(folder / "verdicts.json"));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files += entry.path().extension() == ".json";
  EXPECT_EQ(files, table.size() + 1) << "every plan needs a verdict";
  for (const auto& [name, expected] : table.items()) {
    const Verdict verdict = verify(read_plan(text_of(folder / (name + ".json"))));
    EXPECT_EQ(to_string(verdict.outcome), expected["outcome"].get<std::string>()) << name << verdict.fault.message;
    EXPECT_EQ(to_string(verdict.fault.kind), expected["fault"].get<std::string>()) << name << verdict.fault.message;
  }
}

// Of the processor, so that a machine with other work to do fails nothing.
double seconds_to_verify(const Plan& plan) {
  const std::clock_t start = std::clock();
  const Verdict verdict = verify_strictly(plan);
  EXPECT_EQ(verdict.outcome, Outcome::kProven) << verdict.fault.message;
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  ::testing::Test::RecordProperty("seconds", std::to_string(seconds));
  std::printf("%zu ranks: %.2f s\n", plan.ranks.size(), seconds);
  return seconds;
}

#if !defined(TUTTI_ONE_TARGET)  // not under sanitizers
TEST(VerifierScale, Takes256RanksInTenSeconds) {
  EXPECT_LT(seconds_to_verify(ring_all_reduce(256)), 10);
  EXPECT_LT(seconds_to_verify(tree_all_reduce(256)), 10);
  EXPECT_LT(seconds_to_verify(doubling_all_reduce(256)), 10);
}

TEST(VerifierScale, TakesAllPairsOf64) {
  EXPECT_LT(seconds_to_verify(all_pairs_all_gather(64)), 10);
  EXPECT_LT(seconds_to_verify(packet_all_reduce(64)), 10);
}
#endif

}  // namespace
}  // namespace tutti::plan
