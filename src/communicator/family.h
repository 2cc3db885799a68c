// Groups that were formed in one another: what one of them learns of the death of a rank, all do that it is in.
//
// A rank that has heard of a death in a part makes no call of the whole any more, perhaps, and others wait for it
// there, which have no connection to the dead rank, nor any other way to hear of it.
//
// Ownership: shared by its groups, which it does not keep alive. Thread rule: any thread; the mutex is a leaf.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace tutti {

class CommunicatorImpl;

class Family {
 public:
  // Of one group, to begin with, in whose ranks all are counted.
  static std::shared_ptr<Family> of(const std::shared_ptr<CommunicatorImpl>& first);

  // A group of those `members` of `parent`, in the order of their ranks in it. May throw std::bad_alloc.
  void add(const std::shared_ptr<CommunicatorImpl>& group, const CommunicatorImpl& parent,
           const std::vector<int>& members);

  // The other groups that a rank of `group` is in, and its rank there. May throw std::bad_alloc.
  struct Kin {
    std::shared_ptr<CommunicatorImpl> group;
    int rank;
  };
  std::vector<Kin> with(const CommunicatorImpl& group, int rank) const;

 private:
  struct Entry {
    const CommunicatorImpl* address;  // to be compared only, while `group` lives
    std::weak_ptr<CommunicatorImpl> group;
    std::vector<int> ranks;  // by rank in the group: that in the first one
  };
  const Entry* find(const CommunicatorImpl& group) const noexcept;

  mutable std::mutex mutex_;
  std::vector<Entry> entries_;
};

}  // namespace tutti
