// The memory that the explorer gives a plan: a cell for each unit of each chunk of each buffer.
//
// A unit is the largest part of a chunk that no loop and no group of thread blocks divides, and for loops half of that,
// so that a chunk may end within an iteration. A message may end early: then what lies behind its end, in each rank
// block, is empty, which cuts what reads or writes it.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "plan/plan.h"
#include "plan/sizes.h"

namespace tutti::plan::explorer {

// One way to call the plan.
struct Setting {
  std::int32_t calls = 2;
  std::int64_t units = 1;       // a chunk
  std::int64_t loop_bytes = 0;  // what a unit stands for in loops; 0 without any
  std::int64_t ring = 0;        // units of a chunk of scratch that wraps; 0 if it does not
  std::int64_t filled = -1;     // units of a rank block that the message reaches; -1: all
};

// ", with chunks of 3 units", for messages.
std::string describe(const Setting& setting);

// The ways that decide: whole and short messages; with loops chunks of less than an iteration, of one, of one and a
// half, and so on, up to as many as credits and the ring of scratch can matter. Those that no message that the plan is
// for can have are left out.
std::vector<Setting> settings_for(const Plan& plan);

class Cells {
 public:
  Cells(const Plan& plan, const Setting& setting);

  // A unit of an operand.
  struct Spot {
    std::int32_t rank = 0;
    BufferKind buffer = BufferKind::kInput;
    bool packets = false;
    std::int32_t half = 0;
    std::int64_t chunk = 0;
    std::int64_t unit = 0;  // of the chunk
  };
  std::int32_t cell_of(const Spot& spot) const;
  // False if the message ends before.
  bool filled(const Spot& spot) const;

  std::int32_t count() const { return count_; }
  const Shape& shape() const { return shape_; }

 private:
  std::int32_t take(std::int64_t chunks);

  Setting setting_;
  Shape shape_;
  std::int32_t count_ = 0;
  std::vector<std::array<std::int32_t, 2>> user_;                    // [rank][input, output]
  std::vector<std::array<std::array<std::int32_t, 2>, 2>> scratch_;  // [rank][packets][half]
};

}  // namespace tutti::plan::explorer
