#include "aten/errors.h"

#include <c10/util/Exception.h>

namespace tutti::face {

void throw_backend_error(const std::string& message) { C10_THROW_ERROR(DistBackendError, message); }

void refuse(const std::string& message) { C10_THROW_ERROR(ValueError, message); }

void refuse_negative(const std::string& what, std::chrono::milliseconds timeout) {
  refuse(what + ": the timeout must not be negative, as " + std::to_string(timeout.count()) + " ms is");
}

void refuse_type(const std::string& message) { C10_THROW_ERROR(TypeError, message); }

void throw_as_torch(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
    case ErrorKind::kUnsupported:
      refuse(error.what());
    case ErrorKind::kExhausted:
      C10_THROW_ERROR(Error, error.what());
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kPeerLost:
    case ErrorKind::kAborted:
    case ErrorKind::kInternal:
      break;
  }
  throw_backend_error(error.what());
}

std::exception_ptr as_torch(const std::exception_ptr& error) noexcept {
  if (error == nullptr) return nullptr;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const Error& translatable) {
      throw_as_torch(translatable);
    }
  } catch (...) {
    return std::current_exception();
  }
}

}  // namespace tutti::face
