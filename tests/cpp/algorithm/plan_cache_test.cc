// Plans that need not be read and proven again, and what must not be believed.
#include "algorithm/plan/plan_cache.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "executor/executor_plans.h"
#include "plan/plan_builder.h"
#include "plan/reader.h"
#include "plan/verifier/verdict_text.h"
#include "plan/verifier/verifier.h"
#include "plan/writer.h"
#include "support/temporary_folder.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;

std::string ring(int ranks, const std::string& name = "ring") {
  plan::Plan made = plan::ring_all_reduce(ranks);
  made.name = name;
  return plan::write_plan(made);
}

// A plan that is right after a repair: a relaxed signal publishes data.
std::string relaxed() { return test::content_of(fs::path(TUTTI_TEST_PLANS) / "relaxed_signal_publishes.json"); }

std::size_t ranks_of_relaxed() {
  static const std::size_t ranks = plan::read_plan(relaxed()).ranks.size();
  return ranks;
}

fs::path only_file(const std::string& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    EXPECT_TRUE(found.empty()) << "more than one file in " << folder;
    found = entry.path();
  }
  EXPECT_FALSE(found.empty()) << folder;
  return found;
}

TEST(PlanCache, ProvesATextOnce) {
  const TemporaryFolder here;
  PlanCache cache;
  const std::string a = here.write("a.json", ring(2)), b = here.write("b.json", ring(2));
  const ProvenPlan first = cache.load(a, 2, "");
  ASSERT_NE(first.plan, nullptr);
  EXPECT_EQ(cache.load(a, 2, "").plan, first.plan);
  EXPECT_EQ(cache.load(b, 2, "").plan, first.plan) << "another file of the same content";
  EXPECT_EQ(cache.proofs(), 1u);
  here.write("a.json", ring(2, "other"));
  EXPECT_EQ(cache.load(a, 2, "").plan->name, "other") << "a change within a tick of the clock is seen";
  EXPECT_EQ(cache.proofs(), 2u);
}

TEST(PlanCache, SaysOnceWhereAPlanIsWrong) {
  for (const char* name : {"both_wait_first", "lanes_not_joined", "one_input_left_out"}) {
    const std::string text = test::content_of(fs::path(TUTTI_TEST_PLANS) / (std::string(name) + ".json"));
    const plan::Verdict verdict = plan::verify(plan::read_plan(text));
    ASSERT_FALSE(verdict.fault.sites.empty()) << name;
    PlanCache cache;
    try {
      cache.prove(text, "");
      ADD_FAILURE() << name;
    } catch (const Error& error) {
      const std::string message = error.what();
      for (const plan::Site& site : verdict.fault.sites) {
        const std::size_t first = message.find(plan::describe(site));
        ASSERT_NE(first, std::string::npos) << message;
        EXPECT_EQ(message.find(plan::describe(site), first + 1), std::string::npos) << message;
      }
    }
  }
}

TEST(PlanCache, OtherNumbersOfRanksAreNotProven) {
  const TemporaryFolder here;
  PlanCache cache;
  const std::string file = here.write("a.json", ring(3));
  const ProvenPlan other = cache.load(file, 2, "");
  EXPECT_EQ(other.plan, nullptr);
  EXPECT_EQ(other.ranks, 3u);
  EXPECT_EQ(cache.proofs(), 0u);
  ASSERT_NE(cache.load(file, 3, "").plan, nullptr);
  EXPECT_EQ(cache.load(file, 2, "").plan, nullptr) << "also when it is known";
}

TEST(PlanCache, VerdictsOutliveTheProcess) {
  const TemporaryFolder here;
  for (const auto& [text, ranks] : {std::pair(ring(2), std::size_t{2}), std::pair(relaxed(), ranks_of_relaxed())}) {
    const std::string file = here.write("a.json", text);
    PlanCache first, second;
    const ProvenPlan proven = first.load(file, ranks, here.file("cache"));
    const ProvenPlan again = second.load(file, ranks, here.file("cache"));
    EXPECT_EQ(first.proofs(), 1u);
    EXPECT_EQ(second.proofs(), 0u);
    EXPECT_EQ(*again.plan, *proven.plan) << "repairs included";
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(here.file("cache/verdicts")), {}), 2);
}

// Every entry that is not what this verifier has written about this plan is passed over, and then mended.
TEST(PlanCache, WhatIsWrongInAnEntryCountsForNothing) {
  const TemporaryFolder here;
  const std::string file = here.write("a.json", relaxed());
  const std::size_t ranks = ranks_of_relaxed();
  PlanCache().load(file, ranks, here.file("cache"));
  const fs::path entry = only_file(here.file("cache/verdicts"));
  const std::string good = test::content_of(entry);
  const auto with_checksum = [](std::string text) { return text + "sha256 " + hexadecimal(sha256(text)) + "\n"; };
  const std::string body = good.substr(0, good.rfind("sha256 "));
  const auto replaced = [&](const std::string& from, const std::string& to) {
    std::string text = body;
    text.replace(text.find(from), from.size(), to);
    return with_checksum(text);
  };
  ASSERT_EQ(with_checksum(body), good);
  const std::string verifier(plan::verifier_build());
  const std::vector<std::string> bad = {
      "",
      good.substr(0, good.size() / 2),
      good.substr(0, good.size() - 1),
      good + "x",
      body,
      replaced(verifier, std::string(verifier.size(), '0')),                            // of another verifier
      replaced("plan ", "plan 0"),                                                      // of another plan
      with_checksum(body.substr(0, body.find("repair ")) + "repair 0 99 0 0 -1 -1\n"),  // of no operation of the plan
      with_checksum(body + "repair 0 0 0 0 -1"),
      with_checksum(body + "\n"),
  };
  for (const std::string& text : bad) {
    here.write("cache/verdicts/" + entry.filename().string(), text);
    PlanCache cache;
    ASSERT_NE(cache.load(file, ranks, here.file("cache")).plan, nullptr);
    EXPECT_EQ(cache.proofs(), 1u) << text;
    EXPECT_EQ(test::content_of(entry), good) << "written anew";
  }
}

// An entry is found by the plan's content: that of a right plan says nothing about a wrong one.
TEST(PlanCache, AWrongPlanIsNeverLetThrough) {
  const TemporaryFolder here;
  const std::string right = here.write("right.json", ring(2));
  plan::Plan made = plan::two_step_all_reduce(2);
  std::erase_if(made.ranks[1].blocks[2].operations,
                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSemAcquire; });
  std::erase_if(made.ranks[1].blocks[1].operations,
                [](const plan::Operation& op) { return op.kind == plan::OpKind::kSemRelease; });
  const std::string wrong = here.write("wrong.json", plan::write_plan(made));
  PlanCache().load(right, 2, here.file("cache"));
  const fs::path entry = only_file(here.file("cache/verdicts"));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THROW(PlanCache().load(wrong, 2, here.file("cache")), Error);
    // The right plan's entry under the wrong plan's name.
    const std::string key =
        hexadecimal(sha256(std::string(plan::verifier_build()) + "\n" + hexadecimal(sha256(test::content_of(wrong)))));
    fs::copy_file(entry, entry.parent_path() / (key + ".verdict"), fs::copy_options::overwrite_existing);
  }
}

TEST(PlanCache, AFolderThatCannotBeUsedChangesNothing) {
  const TemporaryFolder here;
  const std::string file = here.write("a.json", ring(2));
  fs::create_directories(here.file("cache/verdicts"));
  fs::permissions(here.file("cache/verdicts"), fs::perms::all);
  for (int i = 0; i < 2; ++i) {
    PlanCache cache;
    ASSERT_NE(cache.load(file, 2, here.file("cache")).plan, nullptr);
    EXPECT_EQ(cache.proofs(), 1u);
  }
  EXPECT_TRUE(fs::is_empty(here.file("cache/verdicts")));
}

TEST(PlanCache, AnUnchangedFileIsNotReadAgain) {
  // Written when the sources were checked out, so its stamp can be trusted.
  const std::string old = std::string(TUTTI_TEST_PLANS) + "/ring_all_reduce_3.json";
  ASSERT_TRUE(FileStamp::of(old).settled());
  PlanCache cache;
  const ProvenPlan first = cache.load(old, 3, "");
  EXPECT_EQ(cache.load(old, 3, "").plan, first.plan);
  EXPECT_EQ(cache.load(old, 2, "").plan, nullptr);
  EXPECT_EQ(cache.reads(), 1u);
  const TemporaryFolder here;
  const std::string young = here.write("a.json", ring(2));
  ASSERT_NE(cache.load(young, 2, "").plan, nullptr);
  ASSERT_NE(cache.load(young, 2, "").plan, nullptr);
  EXPECT_EQ(cache.reads(), 3u) << "what has just been written may change unseen";
  fs::remove(young);
  EXPECT_THROW(cache.load(young, 2, ""), Error);
}

TEST(PlanCache, ThreadsProveTogetherOnce) {
  const TemporaryFolder here;
  const std::string file = here.write("a.json", ring(3));
  PlanCache cache;
  std::vector<std::thread> ranks;
  for (int i = 0; i < 4; ++i) {
    ranks.emplace_back([&] { EXPECT_NE(cache.load(file, 3, here.file("cache")).plan, nullptr); });
  }
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(cache.proofs(), 1u);
}

}  // namespace
}  // namespace tutti
