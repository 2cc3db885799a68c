// The processes whose end this one watches: one pidfd each, however many groups they share with it.
//
// Made when the first group forms, which also raises the soft limit on descriptors (process.h): a group takes one for
// each process of its host while it forms, and one for each connection.
//
// Ownership: whoever was given a descriptor shares it; the last one closes it. Thread rule: any thread; the mutex
// guards the table and is a leaf.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "base/unique_fd.h"

namespace tutti {

// Names a process as long as it lives; then another one may get the name.
struct ProcessName {
  std::uint64_t pid_namespace = 0;
  pid_t pid = 0;  // in that namespace

  auto operator<=>(const ProcessName&) const = default;
};

class PeerProcesses {
 public:
  static PeerProcesses& instance();

  // A pidfd of the process: `fresh`, or one that was given before and means the same process, as it has not ended.
  // Empty, but not null, if both are.
  std::shared_ptr<const UniqueFd> share(const ProcessName& name, UniqueFd fresh);

 private:
  PeerProcesses();

  std::mutex mutex_;
  std::map<ProcessName, std::weak_ptr<const UniqueFd>> known_;
};

}  // namespace tutti
