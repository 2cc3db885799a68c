// How a group that is a c10d::Backend of Tutti's fails, for the library of the other face of torch, which finds this by
// dynamic_cast: c10d::Backend asks for a kind of error alone, and aborts without a reason.
//
// Thread rule: any thread, with Python's global lock or without.
#pragma once

#include <optional>
#include <string>

#include "tutti/error.h"

namespace tutti::face {

class FailingGroup {
 public:
  // What has poisoned the group, on either kind of device, and later calls raise.
  virtual std::optional<Error> failure() const = 0;
  // As abort(): calls raise the reason, on this rank and, as far as it fits, on the others.
  virtual void abort_because(const std::string& reason) noexcept = 0;

 protected:
  ~FailingGroup() = default;
};

}  // namespace tutti::face
