// What every function of the C face begins and ends with: nothing is thrown through C, and each failure leaves its text
// with the thread.
//
// Thread rule: the text is the calling thread's.
#pragma once

#include <memory>
#include <string>

#include "tutti/communicator.h"
#include "tutti/error.h"
#include "tutti/tutti.h"

struct tutti_group {
  std::shared_ptr<tutti::Communicator> communicator;
};

namespace tutti::c {

// Keeps the text for tutti_last_error().
tutti_result failed(tutti_result result, const char* text) noexcept;

// The kind's code, and its text kept.
tutti_result failed(const Error& error) noexcept;

template <class Work>
tutti_result guarded(Work&& work) noexcept {
  try {
    work();
    return TUTTI_SUCCESS;
  } catch (const Error& error) {
    return failed(error);
  } catch (const std::bad_alloc&) {
    return failed(TUTTI_EXHAUSTED, "no memory left");
  } catch (const std::exception& error) {
    return failed(TUTTI_INTERNAL, error.what());
  }
}

// `pointer`, or Error(kInvalidArgument) that names it.
template <class T>
T& required(T* pointer, const char* function, const char* argument) {
  if (pointer == nullptr) {
    throw_error(ErrorKind::kInvalidArgument, std::string(function) + ": " + argument + " is NULL");
  }
  return *pointer;
}

}  // namespace tutti::c
