// Want of memory as an Error, where a caller is promised nothing else.
//
// Thread rule: any thread.
#pragma once

#include <new>

#include "tutti/error.h"

namespace tutti {

// Made when the library is loaded: for those who have no memory to say more. Copying it takes none.
const Error& no_memory_to_say_more() noexcept;

// `what()`: the text.
template <class What>
Error no_memory(const What& what) noexcept {
  try {
    return Error(ErrorKind::kExhausted, what());
  } catch (const std::exception&) {
    return no_memory_to_say_more();
  }
}

// `act()`, whose want of memory is thrown as an Error with the text `what()`.
template <class Act, class What>
decltype(auto) naming_want(const Act& act, const What& what) {
  try {
    return act();
  } catch (const std::bad_alloc&) {
    throw Error(no_memory(what));
  }
}

}  // namespace tutti
