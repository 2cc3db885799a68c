#include "tools/tuning_rank.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/clock.h"
#include "base/process.h"
#include "tutti/config.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kTimeout{120'000};
constexpr int kRounds = 9;
constexpr int kMostCalls = 20'000;  // in a round
constexpr int kGlances = 3, kCallsOfAGlance = 3;
constexpr double kHopeless = 3;        // times as slow as the best at first sight: not measured closely
constexpr double kGain = 0.95;         // what another algorithm's time may be of the default's
constexpr double kRoundsToWin = 0.75;  // of all
constexpr std::string_view kNotForIt = "it does not take this call";

std::shared_ptr<Communicator> make_control(Store& store, int rank, int size) {
  CommunicatorOptions options;
  options.timeout = kTimeout;
  options.config = unchoosing_config();
  options.name = "tuning";
  return Communicator::create(store, options.name, rank, size, options);
}

}  // namespace

double median(std::vector<double> values) {
  if (values.empty()) return -1;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::size_t best_candidate(const std::vector<std::vector<double>>& times_ns, std::size_t by_default) {
  std::size_t best = by_default;
  for (std::size_t i = 0; i < times_ns.size(); ++i) {
    if (median(times_ns[i]) < median(times_ns[best])) best = i;
  }
  const std::vector<double>& now = times_ns[by_default];
  const std::vector<double>& then = times_ns[best];
  if (best == by_default || median(then) > kGain * median(now)) return by_default;
  std::size_t won = 0;
  for (std::size_t round = 0; round < now.size(); ++round) won += then[round] < now[round] ? 1 : 0;
  return static_cast<double>(won) >= kRoundsToWin * static_cast<double>(now.size()) ? best : by_default;
}

TuningRank::TuningRank(std::shared_ptr<Store> store, int rank, int size, const std::string& device)
    : store_(std::move(store)),
      rank_(rank),
      size_(size),
      control_(make_control(*store_, rank, size)),
      place_(make_tuning_place(device, store_, rank, size)) {
  if (control_->host_count() != 1) {
    throw_error(ErrorKind::kUnsupported,
                "the ranks do not share memory (see `tutti doctor`): there is nothing to tune");
  }
}

bool TuningRank::crowded() const { return size_ > usable_cores(); }
std::string TuningRank::gpus() const { return place_->gpus(); }

TuningGroup& TuningRank::group_for(const TuningCandidate& candidate) {
  auto& groups = candidate.plan_path.empty() ? built_in_ : of_plans_;
  std::shared_ptr<TuningGroup>& group = groups[candidate.plan_path.empty() ? candidate.algorithm : candidate.plan_path];
  if (group == nullptr) group = place_->make_group(candidate, "tune" + std::to_string(groups_made_++));
  return *group;
}

void TuningRank::forget_plans() {
  Call barrier;  // nobody is in a call of theirs any more
  control_->run(barrier);
  of_plans_.clear();
}

double TuningRank::largest(double value) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat64;
  call.op = ReduceOp::kMax;
  call.count = 1;
  call.input = call.output = Blocks::single(&value, sizeof value);
  control_->run(call);
  return value;
}

// The algorithm that makes the call in `group`.
std::string TuningRank::runs(TuningGroup& group, const Call& call) {
  group.reset();
  group.start(call);
  group.finish();
  return group.algorithm();
}

// Right, wrong, or not taken.
void TuningRank::try_candidate(TuningGroup& group, SampleCall& sample, const Call& call, CandidateResult& result) {
  sample.fill(rank_);
  place_->put(sample);
  if (runs(group, call) != result.algorithm) {
    result.reason = kNotForIt;
    return;
  }
  place_->fetch(sample);
  if (largest(sample.right(rank_) ? 0 : 1) != 0) result.reason = "WRONG result";
}

// Nanoseconds of one of `calls` calls back to back, here.
double TuningRank::time_calls(TuningGroup& group, const Call& call, int calls) {
  Call barrier;
  group.start(call);  // its caches and its peers' are warm
  group.finish();
  control_->run(barrier);
  const std::int64_t start = now_ns();
  for (int i = 0; i < calls; ++i) group.start(call);
  group.finish();
  return static_cast<double>(now_ns() - start) / calls;
}

void TuningRank::measure_rounds(std::vector<Runner>& runners, const Call& call, double seconds) {
  double best = HUGE_VAL;
  for (Runner& runner : runners) {
    runner.estimate_ns = HUGE_VAL;
    for (int i = 0; i < kGlances; ++i) {
      runner.estimate_ns = std::min(runner.estimate_ns, largest(time_calls(*runner.group, call, kCallsOfAGlance)));
    }
    best = std::min(best, runner.estimate_ns);
  }
  std::size_t hopeful = 0;
  for (const Runner& runner : runners) hopeful += runner.estimate_ns <= kHopeless * best ? 1 : 0;
  const double each_ns = seconds * 1e9 / kRounds / static_cast<double>(std::max<std::size_t>(1, hopeful));
  for (Runner& runner : runners) {
    const double calls = each_ns / std::max(runner.estimate_ns, 1.0);
    runner.calls = static_cast<int>(std::clamp(calls, 1.0, static_cast<double>(kMostCalls)));
  }
  // In turns, so that a disturbance meets all of them.
  for (int round = 0; round < kRounds; ++round) {
    for (Runner& runner : runners) {
      const bool hopeless = runner.estimate_ns > kHopeless * best;
      runner.times_ns.push_back(hopeless ? runner.estimate_ns : largest(time_calls(*runner.group, call, runner.calls)));
    }
  }
}

TuningResult TuningRank::measure(const SampleShape& shape, const std::vector<TuningCandidate>& candidates,
                                 double seconds) {
  SampleShape of_this = shape;
  of_this.ranks = size_;
  SampleCall sample(of_this);
  const Call& call = place_->take(sample);
  sample.fill(rank_);
  place_->put(sample);
  TuningResult result;
  result.by_default = runs(group_for({}), call);
  std::vector<Runner> runners;
  std::size_t by_default = 0;
  for (const TuningCandidate& candidate : candidates) {
    CandidateResult& entry = result.candidates.emplace_back();
    entry.algorithm = candidate.algorithm;
    TuningGroup& group = group_for(candidate);
    try_candidate(group, sample, call, entry);
    if (!entry.reason.empty()) continue;
    if (entry.algorithm == result.by_default) by_default = runners.size();
    Runner& runner = runners.emplace_back();
    runner.group = &group;
    runner.candidate = result.candidates.size() - 1;
  }
  result.choice = result.by_default;
  if (runners.empty()) return result;
  sample.clear();
  place_->put(sample);
  measure_rounds(runners, call, seconds);
  std::vector<std::vector<double>> times;
  for (Runner& runner : runners) {
    result.candidates[runner.candidate].ns = median(runner.times_ns);
    times.push_back(std::move(runner.times_ns));
  }
  result.choice = result.candidates[runners[best_candidate(times, by_default)].candidate].algorithm;
  return result;
}

}  // namespace tutti
