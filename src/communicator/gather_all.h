// What every rank of a group says, by a collective of the group: for the library's own agreements.
#pragma once

#include <span>
#include <type_traits>
#include <vector>

#include "tutti/communicator.h"

namespace tutti {

// Into `all`, by rank. Collective; throws what Communicator::run throws.
template <class Block>
void gather_all(Communicator& group, const Block& own, std::span<Block> all) {
  static_assert(std::is_trivially_copyable_v<Block>);
  Call call;
  call.collective = Collective::kAllGather;
  call.count = sizeof(Block);
  call.input = Blocks::single(&own, sizeof(Block));
  call.output = Blocks::single(all.data(), sizeof(Block));
  group.run(call);
}

template <class Block>
std::vector<Block> gather_all(Communicator& group, const Block& own) {
  std::vector<Block> all(static_cast<std::size_t>(group.size()));
  gather_all(group, own, std::span(all));
  return all;
}

}  // namespace tutti
