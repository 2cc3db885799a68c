// What the verifier found out about a plan.
//
// Thread rule: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan {

enum class Outcome : std::uint8_t { kProven, kProvenAfterRepair, kRejected };

enum class FaultKind : std::uint8_t {
  kNone,
  kRace,         // two accesses that nothing orders, or a read of what is not visible yet
  kDeadlock,     // thread blocks wait for each other, or for what never comes
  kLeftover,     // a counter does not return to its initial value
  kWrongResult,  // an output does not hold what the collective promises
  kLostData,     // a chunk passes through a shorter one
  kPackets,      // a chunk of scratch holds packets and plain data, or a slot is written twice
  kTooLarge,     // past what the verifier takes on
  kUnchecked,    // nothing says what the plan should compute
  kInput,        // the caller's input is written by a plan that does not say so
};

// One operation of one thread block; -1 where it does not apply.
struct Site {
  std::int32_t rank = -1;
  std::int32_t block = -1;
  std::int32_t op = -1;
  std::int32_t inner = -1;      // inside a pipeline
  std::int32_t iteration = -1;  // … in which round
  std::int32_t invocation = 0;
  std::string name;    // "put"; "the caller" for what happens between calls
  std::string origin;  // "program.py:42", or empty

  bool operator==(const Site&) const = default;
};

struct Fault {
  FaultKind kind = FaultKind::kNone;
  std::string message;      // a sentence
  std::vector<Site> sites;  // the operation at fault first; of a deadlock the cycle
};

struct Repair {
  enum class Kind : std::uint8_t {
    kSignal,  // rlxsignal becomes signal
    kWait,    // rlxwait becomes wait
    kFlush,   // a flush of `channel` (as the block numbers it) is added at the end of the block
    kFence,   // an operation on packets also orders plain data
    kSize,    // the plan is for rank blocks of at most `bytes`, so that reused scratch need not be a ring
    kInput,   // the plan says that it writes its input, so that it runs on a copy
  };
  Kind kind = Kind::kSignal;
  std::int32_t rank = 0;
  std::int32_t block = 0;
  std::int32_t op = -1;
  std::int32_t inner = -1;
  std::int32_t channel = -1;
  std::int64_t bytes = 0;

  bool operator==(const Repair&) const = default;
};

struct Verdict {
  Outcome outcome = Outcome::kRejected;
  Fault fault;                  // why the plan as it stands is not proven; kNone if it is
  std::vector<Repair> repairs;  // what makes it proven
  bool same_bits = false;       // a reduction gives every rank the same bits
  bool checked = false;         // the outputs too: the collective says what they hold
  std::int32_t invocations = 0;
};

std::string_view to_string(Outcome outcome) noexcept;
std::string_view to_string(FaultKind kind) noexcept;
std::string_view to_string(Repair::Kind kind) noexcept;
std::string describe(const Site& site);
std::string describe(const Repair& repair);

}  // namespace tutti::plan
