// Error kinds by name, and the two ways to throw an Error.
#include "tutti/error.h"

#include <system_error>

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

void throw_system_error(ErrorKind kind, std::string_view call, int error_number) {
  // generic_category().message() is thread safe where strerror() is not.
  throw Error(kind, std::string(call) + ": " + std::generic_category().message(error_number));
}

}  // namespace tutti
