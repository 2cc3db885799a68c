// What the records and the counts of a call need to know of it, on every device.
#pragma once

#include "base/collective_traits.h"
#include "tutti/call.h"

namespace tutti {

// Bytes of this rank's single block: see the table in tutti/call.h.
inline std::size_t block_bytes(const Call& call, int rank) noexcept {
  switch (call.collective) {
    case Collective::kBarrier:
      return 0;
    case Collective::kScatter:
    case Collective::kReduceScatter:
      return call.output.size(0);
    case Collective::kAllToAll:
      return call.input.size(call.uneven ? rank : 0);
    default:
      return call.input.size(0);
  }
}

}  // namespace tutti
