// tutti::Error as the exceptions that PyTorch users expect:
//
//   kInvalidArgument, kUnsupported                        ValueError (nothing was sent, the group stays usable)
//   kMismatch, kTimeout, kPeerLost, kAborted, kInternal   torch.distributed.DistBackendError (a RuntimeError)
//   kExhausted                                            RuntimeError
//   tensors of the wrong dtype in one list                TypeError (refuse_type)
//
// No torch header: the files that only raise compile fast.
#pragma once

#include <chrono>
#include <exception>
#include <string>
#include <utility>

#include "tutti/error.h"

namespace tutti::face {

[[noreturn]] void throw_as_torch(const Error& error);
[[noreturn]] void throw_backend_error(const std::string& message);
[[noreturn]] void refuse(const std::string& message);                                           // ValueError
[[noreturn]] void refuse_negative(const std::string& what, std::chrono::milliseconds timeout);  // ValueError
[[noreturn]] void refuse_type(const std::string& message);                                      // TypeError

// The exception that throw_as_torch would throw; other exceptions pass unchanged.
std::exception_ptr as_torch(const std::exception_ptr& error) noexcept;

// Runs `f`, with tutti::Error translated.
template <typename F>
decltype(auto) translated(F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    throw_as_torch(error);
  }
}

}  // namespace tutti::face
