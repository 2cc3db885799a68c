// The ends of a call as Python gives them: arrays in memory of any kind, already found to be contiguous.
#pragma once

#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/call.h"
#include "tutti/error.h"

namespace tutti {

struct CallEnd {
  void* data = nullptr;
  std::size_t count = 0;  // of elements
  DataType dtype = DataType::kByte;
};

// Throws Error(kUnsupported) for a type that Tutti does not have.
DataType dtype_of(const nanobind::dlpack::dtype& type);

// Throws Error(kInvalidArgument) if the array, argument `which`, is not C-contiguous; `instead`: what to pass.
template <class Array>
CallEnd end_of(const Array& array, const char* which, const char* instead) {
  std::int64_t step = 1;
  for (std::size_t d = array.ndim(); d-- > 0;) {
    if (array.shape(d) != 1 && array.size() != 0 && array.stride(d) != step) {
      throw_error(ErrorKind::kInvalidArgument, std::string("the ") + which + " is not contiguous: pass " + instead);
    }
    step *= static_cast<std::int64_t>(array.shape(d));
  }
  return {const_cast<void*>(static_cast<const void*>(array.data())), array.size(), dtype_of(array.dtype())};
}

// `object`, or a view of the same memory for nanobind to read: it takes for granted that a buffer says its strides,
// which ctypes' arrays do not. With the GIL.
nanobind::object with_strides(nanobind::handle object);

// A collective of `size` ranks. An end that only the root needs may be absent on others, or have no elements. Throws
// Error(kInvalidArgument).
Call make_call(Collective collective, int size, std::optional<CallEnd> input, std::optional<CallEnd> output,
               ReduceOp op, int root);

// PREMUL_SUM, the last, needs a factor, which nothing here gives.
inline constexpr int kOpsWithoutFactor = static_cast<int>(ReduceOp::kPremulSum);

}  // namespace tutti
