// How objects end whose threads, locks and connections belong to the process that made them.
//
// A forked child has a copy of such an object and none of what it stands on: its threads do not run there, its locks
// may be held for ever by threads that are not, and what its destructor says would be said in the parent's name. So in
// a child it is not destroyed at all; its memory goes with the process. Thread rule: any thread.
#pragma once

#include <memory>
#include <new>
#include <utility>

#include "base/registry.h"

namespace tutti {

// The deleter of such objects.
struct Release {
  template <class T>
  void operator()(T* object) const noexcept {
    if (!forked_child()) delete object;
  }
};

// For destructors, of what belongs to others that know no child, as CUDA's does: true in a child, and then nothing of
// what these hold is destroyed, unless there is no memory to leave it in.
template <class... T>
bool left_by_child(T&... held) noexcept {
  if (!forked_child()) return false;
  (static_cast<void>(new (std::nothrow) T(std::move(held))), ...);
  return true;
}

// The same for what has a deleter of its own already.
template <class T>
std::shared_ptr<T> released_by_owner(std::shared_ptr<T> object) {
  using Held = std::shared_ptr<T>;
  T* const address = object.get();
  const std::shared_ptr<Held> holder(new Held(std::move(object)), Release{});
  return {holder, address};
}

}  // namespace tutti
