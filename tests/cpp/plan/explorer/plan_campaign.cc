// The verifier against the explorer on as many mutants as time allows, on all processors.
//
//   plan_campaign [--first N] [--chains N] [--mutants N] [--seconds N] [--steps N] [--threads N] [--of TEXT]
//                 [--programs FOLDER] [--alarms]
//
// Takes the chains of mutants (chains.h) from number --first on, until there have been --chains of them, --mutants
// mutants or --seconds seconds, whichever comes first; --steps further changes lie on top of each first one. --of takes
// base plans whose name begins so, --programs another folder of built-in programs, --alarms prints every false alarm.
// A finding is printed with the number of its chain: `--first NUMBER --chains 1` with the same --steps and --of shows
// it again. The exit status is 1 if a mutant that goes wrong was accepted, or a verdict changed by permutation.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "plan/explorer/base_plans.h"
#include "plan/explorer/campaign.h"
#include "plan/explorer/chains.h"

namespace tutti::plan::explorer {
namespace {

struct Settings {
  std::map<std::string, std::uint64_t> numbers{
      {"--first", 0},           {"--chains", std::numeric_limits<std::uint64_t>::max()},
      {"--mutants", 1'000'000}, {"--seconds", 300},
      {"--steps", 4},           {"--threads", std::thread::hardware_concurrency()}};
  std::map<std::string, std::string> texts{{"--of", ""}, {"--programs", TUTTI_EXPLORED_PROGRAMS}};
  bool alarms = false;

  std::uint64_t number(const char* name) const { return numbers.at(name); }
};

bool read(int argc, char** argv, Settings& settings) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--alarms") {
      settings.alarms = true;
      continue;
    }
    const char* value = i + 1 < argc ? argv[++i] : nullptr;
    if (value == nullptr) return false;
    if (settings.texts.contains(name)) {
      settings.texts[name] = value;
      continue;
    }
    char* end = nullptr;
    if (!settings.numbers.contains(name)) return false;
    settings.numbers[name] = std::strtoull(value, &end, 10);
    if (end == value || *end != '\0') return false;
  }
  return settings.number("--threads") > 0;
}

class Campaign {
 public:
  Campaign(const Settings& settings, const Chains& chains)
      : settings_(settings),
        chains_(chains),
        end_(std::chrono::steady_clock::now() + std::chrono::seconds(settings.number("--seconds"))) {}

  Tally run() {
    std::vector<std::thread> threads;
    for (std::uint64_t i = 0; i < settings_.number("--threads"); ++i) threads.emplace_back([this] { follow(); });
    for (std::thread& thread : threads) thread.join();
    return std::move(all_);
  }

  std::uint64_t chains() const { return followed_; }

 private:
  bool over() const {
    return followed_ >= settings_.number("--chains") || all_.mutants >= settings_.number("--mutants") ||
           std::chrono::steady_clock::now() >= end_;
  }

  void follow() {
    Tally tally;
    for (;;) {
      std::uint64_t number = 0;
      {
        const std::lock_guard lock(mutex_);
        all_.add(tally);
        if (over()) return;
        number = settings_.number("--first") + followed_++;
      }
      tally = {};
      chains_.follow(number, {}, tally);
    }
  }

  const Settings& settings_;
  const Chains& chains_;
  std::chrono::steady_clock::time_point end_;
  std::mutex mutex_;  // guards what follows
  Tally all_;
  std::uint64_t followed_ = 0;
};

void print_list(const char* what, std::vector<std::string> mutants) {
  std::sort(mutants.begin(), mutants.end());
  for (const std::string& mutant : mutants) std::printf("%s: %s\n", what, mutant.c_str());
}

int run(const Settings& settings) {
  std::vector<BasePlan> bases = base_plans(settings.texts.at("--programs"));
  std::erase_if(bases, [&](const BasePlan& base) { return !base.name.starts_with(settings.texts.at("--of")); });
  const Chains chains(bases, settings.number("--steps"));
  if (chains.changes() == 0) {
    std::fprintf(stderr, "plan_campaign: no base plan has a name that begins with \"%s\"\n",
                 settings.texts.at("--of").c_str());
    return 2;
  }
  const auto start = std::chrono::steady_clock::now();
  Campaign campaign(settings, chains);
  const Tally tally = campaign.run();
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  print_list("wrong and accepted", tally.accepted_wrong);
  print_list("other verdict when permuted", tally.changed_by_permutation);
  if (settings.alarms) print_list("false alarm", tally.false_alarms);
  const auto print = [](const char* what, std::uint64_t count) {
    std::printf("%-28s %12llu\n", what, static_cast<unsigned long long>(count));
  };
  std::printf("%zu base plans, %zu single changes, %llu further ones on each; %llu threads, %.0f s\n", bases.size(),
              chains.changes(), static_cast<unsigned long long>(settings.number("--steps")),
              static_cast<unsigned long long>(settings.number("--threads")), took.count());
  print("first chain", settings.number("--first"));
  print("chains", campaign.chains());
  print("mutants", tally.mutants);
  print("refused by the loader", tally.refused);
  print("proven", tally.proven);
  print("proven after repair", tally.repaired);
  print("wrong", tally.wrong);
  print("undecided", tally.undecided);
  print("false alarms", tally.rejected_right);
  print("wrong and accepted", tally.accepted_wrong.size());
  print("permuted", tally.permuted);
  print("other verdict when permuted", tally.changed_by_permutation.size());
  return tally.accepted_wrong.empty() && tally.changed_by_permutation.empty() ? 0 : 1;
}

}  // namespace
}  // namespace tutti::plan::explorer

int main(int argc, char** argv) {
  tutti::plan::explorer::Settings settings;
  if (!tutti::plan::explorer::read(argc, argv, settings)) {
    std::fprintf(stderr,
                 "usage: plan_campaign [--first N] [--chains N] [--mutants N] [--seconds N] [--steps N] [--threads N] "
                 "[--of TEXT] [--programs FOLDER] [--alarms]\n");
    return 2;
  }
  return tutti::plan::explorer::run(settings);
}
