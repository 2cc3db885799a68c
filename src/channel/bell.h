// A doorbell that a thread can await beside sockets: a datagram socket of the rank, to which the others of its host
// send a byte. A futex and a descriptor cannot be awaited together.
//
// The socket's name lies in the network namespace, of which the ranks of a host share one; the system chooses it. So
// whoever knows the name may ring: that costs the rank a look around and nothing else. Rejected: an eventfd a rank,
// whose descriptor each peer would have to be passed and to keep.
//
// Ownership: owns its socket. Thread rule: any thread may call any member.
#pragma once

#include <cstdint>
#include <memory>

#include "base/unique_fd.h"

namespace tutti {

class Bell {
 public:
  // Null where the system has no such names, or refuses one; errno says why.
  static std::unique_ptr<Bell> create() noexcept;

  explicit Bell(UniqueFd fd, std::uint64_t name) noexcept : fd_(std::move(fd)), name_(name) {}

  int fd() const noexcept { return fd_.get(); }          // readable from a ring until silence()
  std::uint64_t name() const noexcept { return name_; }  // not 0

  // Rings the bell of that name, through the socket of this one. A bell that rings already may stay as it is; one that
  // is not there any more is nothing.
  void ring(std::uint64_t name) const noexcept;
  void silence() noexcept;

 private:
  UniqueFd fd_;
  std::uint64_t name_;
};

}  // namespace tutti
