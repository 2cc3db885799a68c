// Who uses the packets of a rank's scratch in a plan, and whether anybody writes its input: by all thread blocks of all
// ranks, byte by byte, at one size of message.
//
// Thread rule: const after construction.
#pragma once

#include <cstdint>
#include <vector>

#include "executor/program/tables.h"

namespace tutti::executor {

class PacketUses {
 public:
  // Decodes the programs of all ranks. `bytes`: of a rank block. Throws what Program throws.
  PacketUses(const Tables& tables, std::int32_t rank, std::int64_t bytes);

  // Whether one operand of one operation writes into [begin, end) of the rank's packets (RankLayout), and one reads.
  bool passed_on_once(std::int64_t begin, std::int64_t end) const;
  bool input_written() const noexcept { return input_written_; }

 private:
  struct Use {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    bool writes = false;
    std::int64_t farthest = 0;  // end of this one and of all before it
  };
  std::vector<Use> uses_;  // by where they begin
  bool input_written_ = false;
};

}  // namespace tutti::executor
