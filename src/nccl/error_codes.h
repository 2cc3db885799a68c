// Tutti's errors as NCCL's codes, with their text for ncclGetLastError.
#pragma once

#include <exception>

#include "nccl/real_library.h"
#include "tutti/error.h"

namespace tutti::nccl {

inline ncclResult_t code_of(ErrorKind kind) noexcept {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return ncclInvalidArgument;
    case ErrorKind::kUnsupported:
    case ErrorKind::kMismatch:
      return ncclInvalidUsage;
    case ErrorKind::kTimeout:
    case ErrorKind::kPeerLost:
      return ncclRemoteError;
    case ErrorKind::kAborted:
    case ErrorKind::kExhausted:
      return ncclSystemError;
    case ErrorKind::kInternal:
      break;
  }
  return ncclInternalError;
}

// Nothing is thrown through C.
template <class Work>
ncclResult_t guarded(Work&& work) noexcept {
  try {
    work();
    return ncclSuccess;
  } catch (const Error& e) {
    set_last_error(std::string("tutti: ") + e.what());
    return code_of(e.kind());
  } catch (const std::exception& e) {
    set_last_error(std::string("tutti: ") + e.what());
    return ncclInternalError;
  }
}

// For what the program hears nothing of: ncclGetLastError keeps what it had.
template <class Work>
void quietly(Work&& work) noexcept {
  try {
    work();
  } catch (const std::exception&) {
  }
}

}  // namespace tutti::nccl
