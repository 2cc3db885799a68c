// What `tutti tune` has measured on a machine (docs/tuning.md has the format).
//
// Thread rule: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/machine.h"
#include "tutti/types.h"

namespace tutti {

struct MeasuredTime {
  std::string algorithm;
  std::int64_t ns = 0;  // of one call, of the slowest rank
};

// One call, by all that its time depends on.
struct TuningCell {
  int ranks = 0;         // all on one host
  bool crowded = false;  // more of them than cores
  std::string gpus;      // of calls on GPUs: what GPUs these are and how they are connected (CudaCommunicator::gpus)
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kFloat32;
  bool mapped = false;    // the tensors are ones that all ranks map
  std::size_t bytes = 0;  // of one rank's block
  std::string choice;     // one of those measured
  std::vector<MeasuredTime> measured;
};

// A plan that some cell chooses.
struct TunedPlan {
  std::string name;  // of its algorithm: "plan:ring"
  Collective collective = Collective::kBarrier;
  int ranks = 0;
  std::string file;    // from the table's folder
  std::string sha256;  // of what the file holds
};

// Where and by what a table was measured: it holds nowhere else.
struct TuningOrigin {
  int version = 0;    // of the format
  std::string tutti;  // version that has measured
  Machine machine;
};

struct TuningTable {
  TuningOrigin origin;
  std::vector<TunedPlan> plans;
  std::vector<TuningCell> cells;
};

inline constexpr int kTuningVersion = 1;

// Both trust nothing and throw Error(kInvalidArgument) that names the place: "/cells/3/bytes: an integer is expected".
// The origin of a table of another version can be read, too.
TuningOrigin read_tuning_origin(std::string_view text);
TuningTable read_tuning_table(std::string_view text);

}  // namespace tutti
