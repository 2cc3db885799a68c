// One rank of `tutti tune`: runs a call by every algorithm that there is for it, checks the results, times them in
// turns, and says which is the best.
//
// All ranks make the same calls of this class in the same order. Thread rule: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tools/sample_call.h"
#include "tools/tuning_group.h"
#include "tutti/communicator.h"
#include "tutti/store.h"

namespace tutti {

struct CandidateResult {
  std::string algorithm;
  double ns = -1;      // of one call, of the slowest rank: the median of the rounds; -1 if it was not timed
  std::string reason;  // why not
};

struct TuningResult {
  std::string by_default;  // what a call takes without a table
  std::string choice;      // by_default, unless another was faster beyond doubt
  std::vector<CandidateResult> candidates;
};

class TuningRank {
 public:
  // `device`: "cpu", or "cuda" for calls on this machine's GPUs, which the ranks take in turn.
  TuningRank(std::shared_ptr<Store> store, int rank, int size, const std::string& device = "cpu");

  bool crowded() const;      // more ranks than cores
  std::string gpus() const;  // TuningCell::gpus

  // Takes about `seconds`. Throws Error of a rank that failed.
  TuningResult measure(const SampleShape& shape, const std::vector<TuningCandidate>& candidates, double seconds);

  // Ends the groups that were made for plans. They hold memory, and the next collective has others.
  void forget_plans();

 private:
  struct Runner {
    TuningGroup* group = nullptr;
    std::size_t candidate = 0;  // its place in the result
    double estimate_ns = 0;
    int calls = 0;                 // in a round
    std::vector<double> times_ns;  // of one call, a round
  };

  TuningGroup& group_for(const TuningCandidate& candidate);
  void try_candidate(TuningGroup& group, SampleCall& sample, const Call& call, CandidateResult& result);
  std::string runs(TuningGroup& group, const Call& call);
  double time_calls(TuningGroup& group, const Call& call, int calls);
  void measure_rounds(std::vector<Runner>& runners, const Call& call, double seconds);
  double largest(double value);  // of all ranks

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  int groups_made_ = 0;
  const std::shared_ptr<Communicator> control_;  // to agree by
  const std::unique_ptr<TuningPlace> place_;
  std::map<std::string, std::shared_ptr<TuningGroup>> built_in_;  // by algorithm; "": without any choice
  std::map<std::string, std::shared_ptr<TuningGroup>> of_plans_;
};

// Which of the timed candidates to take, given each one's times by round. The default stays unless another's median is
// smaller by more than a twentieth and it was the faster one in three of four rounds.
std::size_t best_candidate(const std::vector<std::vector<double>>& times_ns, std::size_t by_default);

double median(std::vector<double> values);

}  // namespace tutti
