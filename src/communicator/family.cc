#include "communicator/family.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include "communicator/communicator_impl.h"

namespace tutti {

std::shared_ptr<Family> Family::of(const std::shared_ptr<CommunicatorImpl>& first) {
  auto family = std::make_shared<Family>();
  std::vector<int> ranks(static_cast<std::size_t>(first->size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  family->entries_.push_back({first.get(), first, std::move(ranks)});
  return family;
}

// Under the mutex. Whoever asks for a group keeps it alive, so no other has its address.
const Family::Entry* Family::find(const CommunicatorImpl& group) const noexcept {
  const auto found = std::ranges::find_if(
      entries_, [&](const Entry& entry) { return entry.address == &group && !entry.group.expired(); });
  return found != entries_.end() ? &*found : nullptr;
}

void Family::add(const std::shared_ptr<CommunicatorImpl>& group, const CommunicatorImpl& parent,
                 const std::vector<int>& members) {
  const std::lock_guard lock(mutex_);
  Entry entry{group.get(), group, {}};
  if (const Entry* known = find(parent)) {
    for (const int member : members) entry.ranks.push_back(known->ranks[static_cast<std::size_t>(member)]);
  }
  std::erase_if(entries_, [](const Entry& old) { return old.group.expired(); });
  entries_.push_back(std::move(entry));
}

std::vector<Family::Kin> Family::with(const CommunicatorImpl& group, int rank) const {
  std::vector<Kin> kin;
  const std::lock_guard lock(mutex_);
  const Entry* const own = find(group);
  if (own == nullptr) return kin;  // it ends
  const int wanted = own->ranks[static_cast<std::size_t>(rank)];
  kin.reserve(entries_.size());
  for (const Entry& entry : entries_) {
    const auto at = std::ranges::find(entry.ranks, wanted);
    if (&entry == own || at == entry.ranks.end()) continue;
    if (auto other = entry.group.lock()) kin.push_back({std::move(other), static_cast<int>(at - entry.ranks.begin())});
  }
  return kin;
}

}  // namespace tutti
