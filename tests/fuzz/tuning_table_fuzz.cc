// Tuning tables and kept verdicts from arbitrary bytes: an Error of kind InvalidArgument or a table whose rules are
// sound; and a verdict is believed only if it is, to the byte, what would be written.
#include "algorithm/tuning/table.h"
#include "fuzz_main.h"
#include "plan/verifier/verdict_text.h"
#include "tutti/error.h"

namespace tutti::fuzz {
namespace {

constexpr const char* kSubject = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

template <class Read>
void refuse_or_take(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    require(error.kind() == ErrorKind::kInvalidArgument, "what is no table is an invalid argument");
    require(error.what()[0] == '/', "and the place is named");
  }
}

void check(const TuningTable& table) {
  require(table.origin.version == kTuningVersion, "a table is of this version");
  for (const TuningCell& cell : table.cells) {
    bool measured = false;
    for (const MeasuredTime& time : cell.measured) measured = measured || time.algorithm == cell.choice;
    require(measured && cell.ranks >= 1, "what is chosen was measured");
  }
}

}  // namespace

void run(std::string_view bytes) {
  refuse_or_take([&] { read_tuning_origin(bytes); });
  refuse_or_take([&] { check(read_tuning_table(bytes)); });
  if (const auto verdict = plan::read_verdict(bytes, kSubject)) {
    require(plan::write_verdict(*verdict, kSubject) == bytes, "a verdict is what it was written as");
    require(verdict->outcome != plan::Outcome::kRejected, "a rejection is not kept");
  }
}

std::vector<std::string> seeds() {
  plan::Verdict verdict;
  verdict.outcome = plan::Outcome::kProvenAfterRepair;
  verdict.invocations = 2;
  verdict.same_bits = true;
  verdict.repairs = {{plan::Repair::Kind::kSignal, 0, 1, 2, -1, -1}, {plan::Repair::Kind::kFlush, 1, 0, -1, -1, 0}};
  return {R"({"version": 1, "tutti": "0.1.0", "machine": {"cpu": "a", "cores": 2, "last_cache_bytes": 1024},
 "measured_at": "now", "plans": [{"name": "plan:a", "collective": "all_reduce", "ranks": 2, "file": "a.json",
 "sha256": "00"}], "cells": [{"ranks": 2, "crowded": false, "collective": "all_reduce", "dtype": "f32",
 "tensors": "private", "bytes": 1024, "default": "staged", "choice": "ring",
 "measured": [{"algorithm": "ring", "ns": 10}, {"algorithm": "staged", "ns": 12}]}]})",
          plan::write_verdict(verdict, kSubject)};
}

}  // namespace tutti::fuzz
