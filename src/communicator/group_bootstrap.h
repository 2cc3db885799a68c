// A Bootstrap over the connections of a group: for what some of its ranks make in it (groups on devices, messages
// between two of its devices, subgroups). No store is asked. Deaths and the group's own failure end it within a second.
//
// Its messages fail by themselves: they leave the group usable, and count in no metrics.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

class CommunicatorImpl;

// What a group gives. Keeps nothing of it: once it is destroyed, everything throws Error(kAborted). Who waits holds it
// for a second at most; where its last reference is dropped meanwhile, it ends then, on a thread that waits. Any number
// may wait, as long as all do so by this object or copies of it.
class GroupBootstraps {
 public:
  // Those who hold the group while they wait for others. They alone do not keep it.
  class Holders {
   public:
    // Null once the group is destroyed, or nobody but those who wait has it.
    std::shared_ptr<CommunicatorImpl> enter(const std::weak_ptr<CommunicatorImpl>& group);
    void leave(std::shared_ptr<CommunicatorImpl> group) noexcept;

   private:
    std::mutex mutex_;  // guards count_; a leaf
    long count_ = 0;
  };

  explicit GroupBootstraps(Communicator& group);

  // Among `members`, ranks of the group of which this one is one, in the order of their new ranks. `id`: equal on all
  // of them, new each time, and said to people. `look`, if there is one, is called twice a second by whoever waits,
  // which ends by what it throws.
  BootstrapPtr among(std::vector<int> members, const std::string& id, std::function<void()> look = {}) const;
  // What has become of a rank of the group that has died or given up, as far as that is known without waiting.
  std::optional<Error> lost() const;

 private:
  std::weak_ptr<CommunicatorImpl> group_;
  std::string name_;
  std::shared_ptr<Holders> holders_ = std::make_shared<Holders>();
};

// 0 to size - 1.
std::vector<int> all_ranks(int size);

}  // namespace tutti
