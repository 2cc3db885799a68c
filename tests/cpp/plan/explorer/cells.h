// The memory that the explorer gives a plan: a cell for each unit of each chunk of each buffer.
//
// A chunk is as many units as groups of thread blocks and loops need; most plans need one. A message may end early:
// then chunks from a position of their rank block on are empty, which cuts what reads or writes them.
#pragma once

#include <array>
#include <cstdint>
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
  std::int64_t filled = -1;     // chunks of a rank block that the message reaches; -1: all
};

// The ways that decide: whole and short messages, loops once and as often as credits and ring can matter.
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
  bool filled(BufferKind buffer, std::int64_t chunk) const;

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
