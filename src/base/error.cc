// Error kinds by name, and the two ways to throw an Error.
#include "tutti/error.h"

#include <cerrno>
#include <system_error>

#include "base/process.h"

namespace tutti {

std::string_view to_string(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid argument";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kMismatch:
      return "mismatch";
    case ErrorKind::kTimeout:
      return "timeout";
    case ErrorKind::kPeerLost:
      return "peer lost";
    case ErrorKind::kAborted:
      return "aborted";
    case ErrorKind::kExhausted:
      return "exhausted";
    case ErrorKind::kInternal:
      return "internal error";
  }
  return "unknown";
}

void throw_error(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

std::string describe_errno(int error_number) {
  // generic_category().message() is thread safe where strerror() is not.
  std::string text = std::generic_category().message(error_number);
  if (error_number == EMFILE) {
    text += " (this process may have " + std::to_string(descriptor_limit()) +
            " descriptors: raise ulimit -n, or destroy groups that are not used)";
  }
  if (error_number == ENFILE) text += " (all processes of this machine together: raise sysctl fs.file-max)";
  return text;
}

void throw_system_error(ErrorKind kind, std::string_view call, int error_number) {
  throw Error(kind, std::string(call) + ": " + describe_errno(error_number));
}

}  // namespace tutti
