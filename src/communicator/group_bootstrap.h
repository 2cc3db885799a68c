// A Bootstrap over the connections of a group: for what some of its ranks make in it (groups on devices, messages
// between two of its devices, subgroups). No store is asked. Deaths and the group's own failure end it within a second.
//
// Its messages fail by themselves: they leave the group usable, and count in no metrics.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "tutti/communicator.h"

namespace tutti {

class CommunicatorImpl;

// What a group gives. Keeps nothing of it: once it is destroyed, everything throws Error(kAborted). Who waits holds it
// for a second at most; where its last reference is dropped meanwhile, it ends then, on the thread that waits.
class GroupBootstraps {
 public:
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
};

// 0 to size - 1.
std::vector<int> all_ranks(int size);

}  // namespace tutti
