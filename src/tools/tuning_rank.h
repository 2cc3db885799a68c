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
#include "tutti/communicator.h"
#include "tutti/store.h"

namespace tutti {

// An algorithm by its name; one that runs a plan ("plan:ring") also by the plan's file.
struct TuningCandidate {
  std::string algorithm;
  std::string plan_path;
};

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
  TuningRank(std::shared_ptr<Store> store, int rank, int size);

  bool crowded() const;  // more ranks than cores

  // Takes about `seconds`. Throws Error of a rank that failed.
  TuningResult measure(const SampleShape& shape, const std::vector<TuningCandidate>& candidates, double seconds);

  // Ends the groups that were made for plans. They hold memory, and the next collective has others.
  void forget_plans();

 private:
  struct Runner {
    Communicator* group = nullptr;
    std::size_t candidate = 0;  // its place in the result
    double estimate_ns = 0;
    int calls = 0;                 // in a round
    std::vector<double> times_ns;  // of one call, a round
  };

  Communicator& group_for(const TuningCandidate& candidate);
  std::shared_ptr<Communicator> make_group(const TuningCandidate& candidate);
  void try_candidate(Communicator& group, SampleCall& sample, CandidateResult& result);
  std::string runs(Communicator& group, const SampleCall& sample);
  double time_calls(Communicator& group, const SampleCall& sample, int calls);
  void measure_rounds(std::vector<Runner>& runners, SampleCall& sample, double seconds);
  double largest(double value);  // of all ranks

  const std::shared_ptr<Store> store_;
  const int rank_;
  const int size_;
  int groups_made_ = 0;
  std::shared_ptr<Communicator> control_;  // without any choice, to agree by
  std::map<std::string, std::shared_ptr<Communicator>> native_;
  std::map<std::string, std::shared_ptr<Communicator>> of_plans_;
};

// Which of the timed candidates to take, given each one's times by round. The default stays unless another's median is
// smaller by more than a twentieth and it was the faster one in three of four rounds.
std::size_t best_candidate(const std::vector<std::vector<double>>& times_ns, std::size_t by_default);

double median(std::vector<double> values);

}  // namespace tutti
