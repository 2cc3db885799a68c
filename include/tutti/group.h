// What every group of ranks has, whatever memory its calls are on.
//
// Thread rule: every member may be called from any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/error.h"
#include "tutti/metrics.h"

namespace tutti {

class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual const std::string& name() const noexcept = 0;

  virtual std::chrono::milliseconds timeout() const noexcept = 0;
  // Of later calls. Throws Error(kInvalidArgument) unless it is positive.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;

  // Makes every waiting and every later call on this rank raise Error(kAborted), and tells the peers.
  virtual void abort(const std::string& reason) noexcept = 0;
  // The Error that poisoned the group, if any.
  virtual std::optional<Error> failure() const = 0;

  // Collectives issued so far.
  virtual std::uint64_t sequence() const noexcept = 0;

  virtual Metrics metrics() const = 0;
  virtual void reset_metrics() noexcept = 0;
  // The last calls, oldest first, as JSON in the schema of PyTorch's flight recorder.
  virtual std::string flight_record() const = 0;
};

}  // namespace tutti
