// Records of a thread block that come to the same with less memory traffic. A program says what each rank does with
// packets, and what is shortest to say is not the shortest to do: in a one-shot all-reduce a rank packs its own input
// for itself, so that all add in the order of the ranks, and has the first of them in its output for a while.
//
// - unpack(A -> X), fold(B.., X -> X): fold(B.., A -> X).
// - pack(S -> A), where A lies in the rank's own scratch and only this thread block reads it, once: the reader takes S.
//   So S must be memory that nobody writes while the plan runs.
//
// Results have the same bits, and lanes know what they knew: the records that are left take the same pieces by the same
// lanes, and what the plan joins (a nop) stays joined unless it joined nothing but the two that become one.
//
// Thread rule: pure functions.
#pragma once

#include <functional>
#include <vector>

#include "executor/cuda/block_records.h"

namespace tutti::executor {

// What is around a thread block.
struct Surroundings {
  // Plain memory that nobody writes while the plan runs.
  std::vector<RecordRange> constant;
  // Whether these packets lie in the rank's own scratch, and one operand in all of the plan writes into them and one
  // reads them.
  std::function<bool(const DeviceOperand& packets, std::uint64_t bytes)> passed_on_once;
};

void simplify(BlockRecords& records, const Surroundings& around);

}  // namespace tutti::executor
