// What each collective is: whether it reduces, whose memory it reads and writes. The table in tutti/call.h says the
// same in words.
#pragma once

#include <array>
#include <cstddef>

#include "tutti/types.h"

namespace tutti {

struct CollectiveTraits {
  Collective collective;
  bool reduces;
  bool has_root;
  bool input_blocks;   // the input has a block for every rank
  bool output_blocks;  // the output has a block of every rank
  bool root_reads;     // no rank's input counts but the root's
  bool root_writes;    // no rank has an output but the root

  // A block of the one list becomes the other side's only one: its size is known from there.
  constexpr bool takes_a_block() const noexcept { return input_blocks && !output_blocks; }
};

// In the order of the enumeration; the static_assert below keeps it so.
inline constexpr std::array<CollectiveTraits, kCollectiveCount> kCollectiveTraits{{
    {Collective::kAllReduce, true, false, false, false, false, false},
    {Collective::kReduce, true, true, false, false, false, true},
    {Collective::kBroadcast, false, true, false, false, true, false},
    {Collective::kAllGather, false, false, false, true, false, false},
    {Collective::kGather, false, true, false, true, false, true},
    {Collective::kScatter, false, true, true, false, true, false},
    {Collective::kReduceScatter, true, false, true, false, false, false},
    {Collective::kAllToAll, false, false, true, true, false, false},
    {Collective::kBarrier, false, false, false, false, false, false},
}};

constexpr bool collective_traits_in_order() noexcept {
  for (std::size_t i = 0; i < kCollectiveTraits.size(); ++i) {
    const CollectiveTraits& traits = kCollectiveTraits[i];
    if (static_cast<std::size_t>(traits.collective) != i) return false;
    if (traits.has_root != (traits.root_reads || traits.root_writes)) return false;
  }
  return true;
}
static_assert(collective_traits_in_order(), "kCollectiveTraits must follow the order of Collective");

// `collective` is one: codes that come from other processes are checked before.
constexpr const CollectiveTraits& traits_of(Collective collective) noexcept {
  return kCollectiveTraits[static_cast<std::size_t>(collective)];
}
constexpr bool reduces(Collective collective) noexcept { return traits_of(collective).reduces; }
constexpr bool has_root(Collective collective) noexcept { return traits_of(collective).has_root; }

}  // namespace tutti
