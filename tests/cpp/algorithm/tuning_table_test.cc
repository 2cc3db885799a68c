// The tuning table: read, refused, and turned into rules.
#include <gtest/gtest.h>

#include <string>

#include "algorithm/tuning/tuned.h"
#include "base/machine.h"
#include "base/secret.h"
#include "plan/plan_builder.h"
#include "plan/writer.h"
#include "support/refusal.h"
#include "support/temporary_folder.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using test::TemporaryFolder;

std::string cell(const std::string& bytes, const std::string& choice, const std::string& more = "") {
  return R"({"ranks": 2, "crowded": false, "collective": "all_reduce", "dtype": "f32", "tensors": "private", "bytes": )" +
         bytes + R"(, "default": "staged", "choice": ")" + choice +
         R"(", "measured": [{"algorithm": "ring", "ns": 100}, {"algorithm": "staged", "ns": 120}])" + more + "}";
}

std::string table(const std::string& cells, const std::string& plans = "", int version = 1,
                  const std::string& tutti = TUTTI_VERSION, int more_cores = 0) {
  const Machine machine = this_machine();
  return R"({"version": )" + std::to_string(version) + R"(, "tutti": ")" + tutti + R"(", "machine": {"cpu": ")" +
         machine.cpu + R"(", "cores": )" + std::to_string(machine.cores + more_cores) + R"(, "last_cache_bytes": )" +
         std::to_string(machine.last_cache_bytes) + R"(}, "measured_at": "now", "plans": [)" + plans +
         R"(], "cells": [)" + cells + "]}";
}

std::string refusal_of(const std::string& text) {
  return test::refusal([&] { read_tuning_table(text); });
}

std::string refusal_of(const Config& config) {
  return test::refusal([&] { load_tuning(config, 2); });
}

Config at(const std::string& path) {
  Config config;
  config.tuning_path = path;
  return config;
}

TEST(TuningTable, BecomesRulesOfOneGroup) {
  const TuningTable read = read_tuning_table(table(cell("4096", "staged") + "," + cell("1024", "ring")));
  EXPECT_EQ(read.cells.size(), 2u);
  const std::vector<TuningRule> rules = rules_of(read, 2, false);
  ASSERT_EQ(rules.size(), 2u);
  EXPECT_EQ(rules[0].bytes, 1024u);
  EXPECT_EQ(rules[0].max_bytes, 2048u) << "the geometric mean of the two sizes";
  EXPECT_EQ(rules[0].measured[0].algorithm, "ring");
  EXPECT_EQ(rules[1].max_bytes, 8192u) << "twice the largest";
  EXPECT_EQ(rules[1].measured[0].algorithm, "staged") << "what was chosen, although it was not the fastest";
  EXPECT_EQ(rules[1].measured[1].algorithm, "ring");
  EXPECT_TRUE(rules_of(read, 3, false).empty());
  EXPECT_TRUE(rules_of(read, 2, true).empty());
}

// What was measured on some GPUs counts there, and for no call on CPUs.
TEST(TuningTable, OnGpusHoldsForThoseOnly) {
  const TuningTable read =
      read_tuning_table(table(cell("1024", "ring") + "," + cell("2048", "staged", R"(, "gpus": "A")") + "," +
                              cell("4096", "ring", R"(, "gpus": "B, peer memory")")));
  ASSERT_EQ(rules_of(read, 2, false).size(), 1u);
  EXPECT_EQ(rules_of(read, 2, false)[0].bytes, 1024u);
  ASSERT_EQ(rules_on_gpus(read, 2, "B, peer memory").size(), 1u);
  EXPECT_EQ(rules_on_gpus(read, 2, "B, peer memory")[0].bytes, 4096u);
  EXPECT_TRUE(rules_on_gpus(read, 3, "A").empty());
  EXPECT_TRUE(rules_on_gpus(read, 2, "B").empty());
}

TEST(TuningTable, ErrorsNameThePlace) {
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = table(cell("1024", "ring"), R"({"name": "plan:a", "collective": "all_reduce", "ranks": 2,)"
                                                   R"( "file": "a.json", "sha256": "00"})");
    text.replace(text.find(from), from.size(), to);
    return refusal_of(text);
  };
  EXPECT_EQ(with("\"bytes\": 1024", "\"bytes\": \"1K\""), "/cells/0/bytes: an integer is expected");
  EXPECT_EQ(with("\"bytes\": 1024", "\"bytes\": -1").rfind("/cells/0/bytes: ", 0), 0u);
  EXPECT_EQ(with("all_reduce\", \"dtype", "allreduce\", \"dtype"), "/cells/0/collective: there is no such collective");
  EXPECT_EQ(with("\"f32\"", "\"f33\""), "/cells/0/dtype: there is no such element type");
  EXPECT_EQ(with("\"private\"", "\"public\""), "/cells/0/tensors: \"private\" or \"mapped\" is expected");
  EXPECT_EQ(with("\"choice\": \"ring\"", "\"choice\": \"tree\""), "/cells/0/choice: it is not among those measured");
  EXPECT_EQ(with("\"ns\": 120", "\"us\": 120"), "/cells/0/measured/1/us: unknown key");
  EXPECT_EQ(with("\"ns\": 120", "\"ns\": 1.5"), "/cells/0/measured/1/ns: an integer is expected");
  EXPECT_EQ(with("\"crowded\": false", "\"crowded\": false, \"gpus\": \"\""), "/cells/0/gpus: empty");
  EXPECT_EQ(with("\"crowded\": false, ", ""), "/cells/0: \"crowded\" is missing");
  EXPECT_EQ(with("\"file\": \"a.json\"", "\"file\": \"\""), "/plans/0/file: empty");
  EXPECT_EQ(with("\"measured_at\"", "\"when\""), "/when: unknown key");
  EXPECT_EQ(with("\"version\": 1", "\"version\": 2"), "/version: this Tutti reads version 1");
  EXPECT_EQ(refusal_of("[]"), "/: a JSON object is expected");
  EXPECT_EQ(refusal_of(R"({"cells": [1]})"), "/cells/0: an object is expected");
  EXPECT_EQ(refusal_of("{").find("/: not JSON at byte"), 0u);
}

TEST(Tuning, FindsTheTableOfThisMachineInAFolder) {
  const TemporaryFolder here;
  Config config;
  EXPECT_EQ(load_tuning(config, 2).table, nullptr) << "no folder, no table";
  config.user_config = here.path();
  EXPECT_EQ(load_tuning(config, 2).table, nullptr) << "a folder without one";
  here.write("tuning-" + short_id(this_machine()) + ".json", table(cell("1024", "ring")));
  const Tuning found = load_tuning(config, 2);
  ASSERT_NE(found.table, nullptr);
  EXPECT_NE(found.identity, 0u);
  EXPECT_EQ(load_tuning(at(here.path()), 2).identity, found.identity);
  EXPECT_EQ(load_tuning(config, 1).table, nullptr) << "a rank on its own chooses nothing";
  config.tuning_path = "none";
  EXPECT_EQ(load_tuning(config, 2).table, nullptr);
}

TEST(Tuning, OneThatWasAskedForMustBeThereAndWhole) {
  const TemporaryFolder here;
  const std::string missing = here.file("missing.json");
  const std::string absent = "cannot be read: " + describe_errno(ENOENT);
  EXPECT_EQ(refusal_of(at(missing)), "TUTTI_TUNING_PATH: " + missing + ": " + absent);
  const std::string broken = here.write("broken.json", table(cell("1024", "nothing")));
  const std::string why = broken + ": /cells/0/choice: it is not among those measured";
  EXPECT_EQ(refusal_of(at(broken)), "TUTTI_TUNING_PATH: " + why);
  Config found;  // in the user's folder, which no variable names
  found.user_config = here.path();
  const std::string there = here.write("tuning-" + short_id(this_machine()) + ".json", table(cell("1024", "nothing")));
  EXPECT_EQ(refusal_of(found).find(there + ": /cells/0/choice"), 0u);
}

TEST(Tuning, ATableOfElsewhereDoesNotCountAndSaysWhy) {
  const TemporaryFolder here;
  // Not even its cells need be understood.
  const std::string later = here.write("later.json", table("{}", "", 2));
  const std::string other = here.write("other.json", table("{}", "", 1, "9.9"));
  const std::string larger = here.write("larger.json", table("{}", "", 1, TUTTI_VERSION, 1));
  for (const auto& [path, why] : {std::pair(later, "version 2 of the format"), std::pair(other, "by Tutti 9.9"),
                                  std::pair(larger, "of another machine")}) {
    const Tuning tuning = load_tuning(at(path), 2);
    EXPECT_EQ(tuning.table, nullptr);
    EXPECT_EQ(tuning.identity, 0u);
    EXPECT_NE(tuning.complaint.find(path), std::string::npos) << tuning.complaint;
    EXPECT_NE(tuning.complaint.find(why), std::string::npos) << tuning.complaint;
  }
}

TEST(Tuning, IdentityFollowsTheContent) {
  const TemporaryFolder here;
  const std::uint64_t one = load_tuning(at(here.write("a.json", table(cell("1024", "ring")))), 2).identity;
  const std::uint64_t same = load_tuning(at(here.write("b.json", table(cell("1024", "ring")))), 2).identity;
  const std::uint64_t two = load_tuning(at(here.write("a.json", table(cell("1024", "staged")))), 2).identity;
  EXPECT_EQ(one, same);
  EXPECT_NE(one, two);
}

TEST(Tuning, APlanMustBeTheOneThatWasMeasured) {
  const TemporaryFolder here;
  plan::Plan made = plan::ring_all_reduce(2);
  made.name = "fine";
  const std::string text = plan::write_plan(made);
  const std::string file = here.write("fine.json", text);
  const auto entry = [&](const std::string& name, const std::string& digest, int ranks = 2) {
    return R"({"name": ")" + name + R"(", "collective": "all_reduce", "ranks": )" + std::to_string(ranks) +
           R"(, "file": "fine.json", "sha256": ")" + digest + R"("})";
  };
  const std::string digest = hexadecimal(sha256(text));
  const std::string good = here.write("good.json", table(cell("1024", "ring"), entry("plan:fine", digest)));
  const Tuning tuning = load_tuning(at(good), 2);
  ASSERT_EQ(tuning.plans.size(), 1u);
  EXPECT_EQ(tuning.plans[0].plan->name, "fine");
  EXPECT_TRUE(load_tuning(at(good), 3).plans.empty());
  EXPECT_TRUE(load_tuning(at(good), 2, TunedDevice::kGpu).plans.empty());
  std::string on_gpus = table(cell("1024", "ring", R"(, "gpus": "A")"), entry("plan:fine", digest));
  for (std::size_t found = 0; (found = on_gpus.find("\"ring\"")) != std::string::npos;) {
    on_gpus.replace(found, 6, "\"plan:fine\"");
  }
  const std::string gpu_file = here.write("gpus.json", on_gpus);
  EXPECT_TRUE(load_tuning(at(gpu_file), 2).plans.empty());
  EXPECT_EQ(load_tuning(at(gpu_file), 2, TunedDevice::kGpu).plans.size(), 1u);
  for (const std::string& bad : {entry("plan:fine", std::string(64, '0')), entry("plan:other", digest)}) {
    const std::string path = here.write("bad.json", table(cell("1024", "ring"), bad));
    const std::string said = refusal_of(at(path));
    EXPECT_EQ(said.find("TUTTI_TUNING_PATH: " + path + ": /plans/0: " + file + " is not the plan that was measured"),
              0u)
        << said;
  }
  std::filesystem::remove(file);
  EXPECT_EQ(refusal_of(at(good)),
            "TUTTI_TUNING_PATH: " + good + ": /plans/0: " + file + ": cannot be read: " + describe_errno(ENOENT));
}

}  // namespace
}  // namespace tutti
