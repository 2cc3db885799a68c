#include "executor/cuda/packet_uses.h"

#include <algorithm>

#include "executor/program/packets.h"
#include "executor/program/program.h"

namespace tutti::executor {

PacketUses::PacketUses(const Tables& tables, std::int32_t rank, std::int64_t bytes) {
  for (std::int32_t r = 0; r < tables.ranks(); ++r) {
    const Program program(tables, r, bytes, bytes);
    for (const auto& block : program.blocks()) {
      for (const Instruction& one : block) {
        for (std::uint32_t i = 0; one.bytes > 0 && i < one.sources + one.targets; ++i) {
          const Pointer& pointer = program.pointers()[one.pointers + i];
          const BaseRef& base = program.bases()[pointer.base];
          if (base.rank != rank) continue;
          const bool writes = i >= one.sources;
          input_written_ = input_written_ || (base.area == Area::kInput && writes);
          if (base.area != Area::kPackets) continue;
          uses_.push_back({pointer.offset, pointer.offset + packets_of(one.bytes) * kPacketBytes, writes, 0});
        }
      }
    }
  }
  std::sort(uses_.begin(), uses_.end(), [](const Use& a, const Use& b) { return a.begin < b.begin; });
  std::int64_t farthest = 0;
  for (Use& use : uses_) use.farthest = farthest = std::max(farthest, use.end);
}

bool PacketUses::passed_on_once(std::int64_t begin, std::int64_t end) const {
  int reads = 0, writes = 0;
  auto at =
      std::lower_bound(uses_.begin(), uses_.end(), end, [](const Use& use, std::int64_t to) { return use.begin < to; });
  while (at != uses_.begin() && (--at)->farthest > begin) {
    if (at->end <= begin) continue;
    ++(at->writes ? writes : reads);
    if (reads > 1 || writes > 1) return false;
  }
  return reads == 1 && writes == 1;
}

}  // namespace tutti::executor
