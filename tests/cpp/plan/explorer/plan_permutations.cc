// No verdict on a plan changes if the plan is permuted (permutations.h): for plans in files.
//
//   plan_permutations FOLDER [--times N] [--seconds N] [--seed N]
//
// Permutes every plan of the folder --times times, one round after the other, until --seconds are over. What the loader
// refuses has no verdict and is passed over. A permutation follows from the seed, the round and the file's name. The
// exit status is 1 if a verdict changed, 2 if not even every plan was permuted once, or there is none.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "plan/explorer/campaign.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "tutti/error.h"

namespace tutti::plan::explorer {
namespace {

using Numbers = std::map<std::string, std::uint64_t>;

bool read(int argc, char** argv, Numbers& numbers) {
  for (int i = 2; i < argc; i += 2) {
    if (!numbers.contains(argv[i]) || i + 1 == argc) return false;
    char* end = nullptr;
    numbers[argv[i]] = std::strtoull(argv[i + 1], &end, 10);
    if (end == argv[i + 1] || *end != '\0') return false;
  }
  return argc >= 2;
}

struct Judged {
  std::string name;
  Plan plan;
  Verdict verdict;
};

std::vector<Judged> plans_in(const std::string& folder) {
  std::vector<Judged> plans;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text(std::istreambuf_iterator<char>(file), {});
    try {
      Plan plan = read_plan(text);
      Verdict verdict = verify(plan);
      plans.push_back({entry.path().stem(), std::move(plan), std::move(verdict)});
    } catch (const Error& error) {
      std::printf("refused by the loader: %s: %s\n", entry.path().c_str(), error.what());
    }
  }
  std::ranges::sort(plans, {}, &Judged::name);
  return plans;
}

int run(const std::string& folder, const Numbers& numbers) {
  const auto start = std::chrono::steady_clock::now();
  const auto seconds = [start] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  const std::vector<Judged> plans = plans_in(folder);
  const double judged = seconds();
  const auto limit = static_cast<double>(numbers.at("--seconds"));
  Tally tally;
  std::uint64_t round = 0;
  std::size_t next = 0;  // of this round
  for (; round < numbers.at("--times") && seconds() < limit; ++round, next = 0) {
    for (; next < plans.size() && seconds() < limit; ++next) {
      const Judged& judged_plan = plans[next];
      std::vector<std::uint64_t> drawn(judged_plan.name.begin(), judged_plan.name.end());
      drawn.insert(drawn.end(), {numbers.at("--seed"), round});
      std::seed_seq sequence(drawn.begin(), drawn.end());
      std::mt19937_64 random(sequence);
      permute(judged_plan.plan, judged_plan.name + ", round " + std::to_string(round), judged_plan.verdict, random,
              tally);
    }
    if (next < plans.size()) break;
  }
  for (const std::string& changed : tally.changed_by_permutation) std::printf("another verdict: %s\n", changed.c_str());
  std::printf(
      "%zu plans, judged in %.1f s; %llu whole rounds and %zu plans of one more in %.1f s: %zu permuted, %zu others\n",
      plans.size(), judged, static_cast<unsigned long long>(round), next, seconds() - judged, tally.permuted,
      tally.changed_by_permutation.size());
  if (!tally.changed_by_permutation.empty()) return 1;
  return plans.empty() || round == 0 ? 2 : 0;
}

}  // namespace
}  // namespace tutti::plan::explorer

int main(int argc, char** argv) {
  tutti::plan::explorer::Numbers numbers{{"--times", 20}, {"--seconds", 3'600}, {"--seed", 1}};
  if (!tutti::plan::explorer::read(argc, argv, numbers)) {
    std::fprintf(stderr, "usage: plan_permutations FOLDER [--times N] [--seconds N] [--seed N]\n");
    return 2;
  }
  return tutti::plan::explorer::run(argv[1], numbers);
}
