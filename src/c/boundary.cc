#include "c/boundary.h"

#include <array>
#include <cstdio>

namespace tutti::c {
namespace {

// Fixed, so that a failure for want of memory has its text too. A longer one loses its end.
using Text = std::array<char, 4096>;
Text& last_error() noexcept {
  static thread_local Text text{};
  return text;
}

tutti_result code_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return TUTTI_INVALID_ARGUMENT;
    case ErrorKind::kUnsupported:
      return TUTTI_UNSUPPORTED;
    case ErrorKind::kMismatch:
      return TUTTI_MISMATCH;
    case ErrorKind::kTimeout:
      return TUTTI_TIMEOUT;
    case ErrorKind::kPeerLost:
      return TUTTI_PEER_LOST;
    case ErrorKind::kAborted:
      return TUTTI_ABORTED;
    case ErrorKind::kExhausted:
      return TUTTI_EXHAUSTED;
    case ErrorKind::kInternal:
      break;
  }
  return TUTTI_INTERNAL;
}

}  // namespace

tutti_result failed(tutti_result result, const char* text) noexcept {
  Text& kept = last_error();
  std::snprintf(kept.data(), kept.size(), "%s", text);
  return result;
}

tutti_result failed(const Error& error) noexcept { return failed(code_of(error.kind()), error.what()); }

}  // namespace tutti::c

const char* tutti_last_error(void) { return tutti::c::last_error().data(); }

const char* tutti_result_name(tutti_result result) {
  switch (result) {
    case TUTTI_SUCCESS:
      return "TUTTI_SUCCESS";
    case TUTTI_INVALID_ARGUMENT:
      return "TUTTI_INVALID_ARGUMENT";
    case TUTTI_UNSUPPORTED:
      return "TUTTI_UNSUPPORTED";
    case TUTTI_MISMATCH:
      return "TUTTI_MISMATCH";
    case TUTTI_TIMEOUT:
      return "TUTTI_TIMEOUT";
    case TUTTI_PEER_LOST:
      return "TUTTI_PEER_LOST";
    case TUTTI_ABORTED:
      return "TUTTI_ABORTED";
    case TUTTI_EXHAUSTED:
      return "TUTTI_EXHAUSTED";
    case TUTTI_INTERNAL:
      return "TUTTI_INTERNAL";
  }
  return "no result of Tutti";
}
