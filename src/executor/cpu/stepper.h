// All ranks of a plan, run an operation at a time by who watches: what `tutti plan step` stands on.
//
// The data say where they come from. A chunk of an input consists of cells of `cell_bytes()`, 64-bit words whose sums
// can be taken apart again: word 0 is (number of the call << 32) + (number of the chunk + 1), and rank r adds
// 1 << 4 (r mod 15) to word 1 + r / 15. So all reductions are run as sums, whatever the plan says, and up to 15
// contributions of a rank are told apart. Outputs and scratch begin as zeros.
//
// Thread rule: one caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "executor/cpu/local_world.h"
#include "plan/plan.h"

namespace tutti::executor {

class Stepper {
 public:
  // `cells` in a chunk. Throws what LocalWorld throws.
  Stepper(const plan::Plan& plan, std::int64_t cells);

  std::int64_t cell_bytes() const noexcept { return cell_bytes_; }
  const Tables& tables() const noexcept { return world_->tables(); }
  const Interpreter& interpreter(std::int32_t rank) const noexcept { return world_->interpreter(rank); }

  // Begins the next call, with fresh inputs. The one before must be over.
  void begin();

  // Runs a task to the end of the operation that it is at (in a pipeline: by one instruction) or until it must wait.
  // kBlocked: it did nothing at all. kEnded: nothing was left to do.
  Step step(std::int32_t rank, std::size_t task) noexcept;

  // What lies in a chunk. Of packets what has arrived without a gap, so it may be short.
  std::vector<std::byte> chunk(std::int32_t rank, plan::BufferKind buffer, std::int32_t index, bool packets) const;

 private:
  void fill();

  std::int64_t cell_bytes_ = 0;
  std::int64_t chunk_bytes_ = 0;
  std::unique_ptr<LocalWorld> world_;
  std::int64_t calls_ = 0;
  std::vector<std::vector<std::byte>> inputs_;  // by rank; in place only the larger buffer of the two is used
  std::vector<std::vector<std::byte>> outputs_;
  LocalMessage message_;
};

}  // namespace tutti::executor
