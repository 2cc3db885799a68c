// A group whose calls `tutti tune` times: one on CPUs, or one on this machine's GPUs.
//
// Thread rule: one thread a rank. All ranks make the same calls in the same order.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "tools/sample_call.h"
#include "tutti/call.h"
#include "tutti/config.h"
#include "tutti/metrics.h"
#include "tutti/store.h"

namespace tutti {

// An algorithm by its name; one that runs a plan ("plan:ring") also by the plan's file. Both empty: the untuned choice.
struct TuningCandidate {
  std::string algorithm;
  std::string plan_path;
};

class TuningGroup {
 public:
  virtual ~TuningGroup() = default;

  // Makes the call, or on GPUs lets it follow those before it.
  virtual void start(const Call& call) = 0;
  // All that was started is done. Throws the Error of what has failed.
  virtual void finish() = 0;
  // The algorithm of the one call since the last reset(), by its name in a table; empty: there was none.
  virtual std::string algorithm() = 0;
  virtual void reset() = 0;
};

// Where the memory of samples is, and groups on it.
class TuningPlace {
 public:
  virtual ~TuningPlace() = default;

  // Collective; `name` is new.
  virtual std::shared_ptr<TuningGroup> make_group(const TuningCandidate& candidate, const std::string& name) = 0;

  // Where a sample's call is made: collective. The call lasts until the next take().
  virtual const Call& take(SampleCall& sample) = 0;
  // The sample that was taken, to where its call is made, and back.
  virtual void put(const SampleCall& sample) = 0;
  virtual void fetch(SampleCall& sample) = 0;
  // TuningCell::gpus.
  virtual std::string gpus() const = 0;
};

// `device` is "cpu" or "cuda". Throws Error(kUnsupported) where there is no GPU. Collective.
std::unique_ptr<TuningPlace> make_tuning_place(const std::string& device, std::shared_ptr<Store> store, int rank,
                                               int size);
std::unique_ptr<TuningPlace> make_gpu_tuning_place(std::shared_ptr<Store> store, int rank, int size);

// What places have in common.
inline constexpr std::chrono::milliseconds kTuningTimeout{120'000};
Config unchoosing_config();                          // what the environment says, but for what chooses algorithms
std::string only_algorithm(const Metrics& metrics);  // of the first row; empty without one

}  // namespace tutti
