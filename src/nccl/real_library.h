// The real NCCL behind the library that has its name, found at the first call: by TUTTI_NCCL_LIB_PATH, else the one
// that the program has loaded or would have loaded, else libnccl.so.2 by the linker's paths or beside this library's
// package.
//
// Ownership: it stays loaded as long as the process. Thread rule: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

#include "device/nccl/abi.h"
#include "nccl/functions.h"

namespace tutti::nccl {

struct Real {
#define TUTTI_NCCL_POINTER(result, name, parameters, arguments) result(*name) parameters = nullptr;
  TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_POINTER)
#undef TUTTI_NCCL_POINTER
  std::string path;     // of its file
  std::string problem;  // why there is none
  std::string version;  // "2.28.9"
};

const Real& real();
// Whether anybody has asked for it: programs that a preloaded library is of no use to do not.
bool real_is_known() noexcept;

// While the real library works on this thread: what it calls by its public names comes here too, and is passed on
// unseen.
class InReal {
 public:
  InReal() noexcept { ++depth_; }
  ~InReal() { --depth_; }
  InReal(const InReal&) = delete;
  InReal& operator=(const InReal&) = delete;
  static bool here() noexcept { return depth_ > 0; }

 private:
  static thread_local int depth_;
};

// What ncclGetLastError says on this thread, until a call of the real library fails after it.
void set_last_error(const std::string& text) noexcept;
void clear_last_error() noexcept;
const char* last_error() noexcept;  // null: the real library's counts

// What a function answers that the real library lacks, or without one.
ncclResult_t missing(const char* name) noexcept;

// Calls the real library's function.
template <class Result, class... Parameters>
Result pass(Result (*Real::*function)(Parameters...), const char* name, std::type_identity_t<Parameters>... arguments) {
  const auto call = real().*function;
  if (call == nullptr) {
    const ncclResult_t result = missing(name);
    if constexpr (std::is_same_v<Result, ncclResult_t>) {
      return result;
    } else if constexpr (std::is_same_v<Result, const char*>) {
      return last_error();
    } else if constexpr (std::is_same_v<Result, int>) {
      return -1;
    } else {
      return Result();
    }
  }
  const InReal inside;
  if constexpr (std::is_same_v<Result, ncclResult_t>) {
    const ncclResult_t result = call(arguments...);
    if (result != ncclSuccess && result != ncclInProgress) clear_last_error();
    return result;
  } else {
    return call(arguments...);
  }
}

// TUTTI_NCCL_PASS(ncclCommCount, (comm, count)): the same, with the name written once.
#define TUTTI_NCCL_WITH(...) __VA_OPT__(, ) __VA_ARGS__
#define TUTTI_NCCL_PASS(name, arguments) \
  ::tutti::nccl::pass(&::tutti::nccl::Real::name, #name TUTTI_NCCL_WITH arguments)

}  // namespace tutti::nccl
