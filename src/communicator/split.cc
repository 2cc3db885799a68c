// A group's ranks in smaller groups: who goes with whom is a call of the group, and each part forms in its messages.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.h"
#include "communicator/communicator_impl.h"
#include "communicator/gather_all.h"
#include "communicator/subgroup.h"
#include "tutti/group_id.h"

namespace tutti {
namespace {

struct Wish {
  std::int32_t color = -1;
  std::int32_t key = 0;
  std::size_t name = 0;  // its hash: the part forms under it
};

struct Part {
  std::vector<int> members;  // the ranks with this one's color, in the order of their keys; none if it has none
  std::string id;            // what it forms under, that of no other split
};

// Memory is taken before the call: a rank that finds none has sent nothing.
Part agree(Communicator& parent, const Wish& own, const std::string& name) {
  std::vector<Wish> wishes(static_cast<std::size_t>(parent.size()));
  Part part{{}, name + "/"};
  part.members.reserve(wishes.size());
  part.id.reserve(part.id.size() + std::numeric_limits<std::uint64_t>::digits10 + 1);
  gather_all(parent, own, std::span(wishes));
  const auto wish = [&](int rank) { return wishes[static_cast<std::size_t>(rank)]; };
  for (int r = 0; r < parent.size(); ++r) {
    if (own.color >= 0 && wish(r).color == own.color) part.members.push_back(r);
  }
  std::ranges::sort(part.members, {}, [&](int r) { return std::pair(wish(r).key, r); });
  // All ranks have made the call, so they count alike.
  part.id += std::to_string(dynamic_cast<CommunicatorImpl&>(parent).next_split());
  for (const int r : part.members) {
    if (wish(r).name == own.name) continue;
    throw_error(ErrorKind::kMismatch, "split of group '" + parent.name() + "': rank " + std::to_string(r) +
                                          " gives the part of color " + std::to_string(own.color) +
                                          " another name than rank " + std::to_string(parent.rank()) + ", '" + name +
                                          "': the ranks of a part give one name");
  }
  return part;
}

}  // namespace

std::shared_ptr<Communicator> split_group(Communicator& parent, int color, int key, const std::string& name) {
  const auto want = [&] {
    return "rank " + std::to_string(parent.rank()) + " of group '" + parent.name() +
           "' has no memory to split it into '" + name + "'";
  };
  const Part part = naming_want(
      [&] {
        return agree(parent, {color, key, std::hash<std::string>()(name)}, name);
      },
      want);
  if (part.members.empty()) return nullptr;
  return form_in(parent, part.members, part.id, [&] {
    CommunicatorOptions options = parent.options();
    options.timeout = parent.timeout();
    options.name = name;
    return options;
  });
}

std::uint64_t splits_of(const Communicator& parent) noexcept {
  return dynamic_cast<const CommunicatorImpl&>(parent).splits();
}

}  // namespace tutti
