// The abstract memory and agents of a plan: every chunk is cut into equal units, fine enough that thread block groups
// and loop iterations cover whole units; every unit of every buffer of every rank is a cell.
//
// In place, the cells of input and output are the same where the memory is. Plain scratch and packet slots are
// different cells, in one or two halves.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "plan/links.h"
#include "plan/plan.h"
#include "plan/sizes.h"
#include "plan/verifier/lengths.h"

namespace tutti::plan {

class Layout {
 public:
  Layout(const Plan& plan, const Cut& cut);

  using Cell = std::int64_t;

  // Where the units of an operand lie: unit j of it is at(j).
  struct Run {
    std::int32_t rank = 0;
    BufferKind buffer = BufferKind::kInput;
    bool packets = false;
    std::int32_t half = 0;
    std::int64_t first_chunk = 0;
  };
  Cell cell(const Run& run, std::int64_t unit) const;
  Cell cell_of(std::int32_t rank, BufferKind buffer, std::int64_t chunk, std::int64_t unit) const;

  std::int64_t cells() const { return cells_; }
  std::int64_t first_packet_cell() const { return first_packet_cell_; }
  const Cut& cut() const { return cut_; }
  const Shape& shape() const { return shape_; }
  std::int32_t halves() const { return halves_; }

  // The chunk that an operand's unit belongs to, within its rank block; -1 in scratch, which is never cut short.
  std::int64_t position(BufferKind buffer, std::int64_t chunk) const;

  // "chunk 3 of rank 1's output", for messages.
  std::string name_of(Cell cell) const;

 private:
  struct Region {
    Cell begin = 0;
    std::int32_t rank = 0;
    const char* what = "";
  };
  Cell add(std::int64_t chunks, std::int32_t rank, const char* what);

  Cut cut_;
  Shape shape_;
  std::int32_t halves_;
  Cell cells_ = 0;
  Cell first_packet_cell_ = 0;
  std::vector<Region> regions_;
  std::vector<std::array<Cell, 2>> user_;                    // [rank][input, output]: of chunk 0
  std::vector<std::array<std::array<Cell, 2>, 2>> scratch_;  // [rank][packets][half]
};

}  // namespace tutti::plan
