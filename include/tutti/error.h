// The one exception type of Tutti, and the kinds that tell a caller what to do next.
//
// Thread rule: values, freely copied. Hot paths and waits do not throw: they return an Outcome
// (base/outcome.h), which the communicator turns into an Error once.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace tutti {

// What went wrong, by what the caller can do about it.
enum class ErrorKind {
  kInvalidArgument,  // the call was refused before anything was sent: mend the arguments
  kUnsupported,      // not for this dtype, operation or device: choose another
  kMismatch,         // the ranks made different calls: mend the program
  kTimeout,          // a peer did not arrive in time: look at that peer, or allow more time
  kPeerLost,         // a peer died or left: shrink the group or start again
  kAborted,          // this rank aborted the communicator
  kExhausted,        // no memory, descriptors or addresses left: free some, raise a limit
  kInternal,         // a bug in Tutti or a broken system call: report it
};

std::string_view to_string(ErrorKind kind) noexcept;

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

[[noreturn]] void throw_error(ErrorKind kind, const std::string& message);

// What errno's value means, and for limits what they are and how to raise them.
std::string describe_errno(int error_number);

// An Error that names a failed system call, described so: "memfd_create: Too many open files (…)".
[[noreturn]] void throw_system_error(ErrorKind kind, std::string_view call, int error_number);

}  // namespace tutti
