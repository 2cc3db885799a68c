// What only a CUDA call that waits for the device can give back: registrations of host memory, mappings of another
// process's cudaMalloc, modules. Such a call waits for every kernel that runs there, and launches of other threads wait
// for it meanwhile (seen with driver 580). A kernel that waits for a peer would be one end of a cycle, since that peer
// may need this process's next launch: a thread for such calls would not help. So they are left here, and made where no
// kernel of Tutti's is under way (QuietDevice), or where who asks is known to wait.
//
// Thread rule: any thread. Locks: a leaf of its own; what gives back is called without it.
#pragma once

#include <cstddef>
#include <functional>
#include <new>

namespace tutti::cuda {

enum class Leftover {
  kMapping,  // of memory that its owner may free once all have given it back
  kOwn,      // of nobody else's concern
};

// Throws std::bad_alloc, and keeps nothing.
void keep_leftover(Leftover kind, std::size_t bytes, std::function<void()> give_back);

// Calls `give_back`, which must not throw, when asked for it; at once where there is no memory to keep it. `bytes`: of
// memory that is held by that.
template <class GiveBack>
void leave(Leftover kind, std::size_t bytes, const GiveBack& give_back) noexcept {
  try {
    keep_leftover(kind, bytes, give_back);
  } catch (const std::bad_alloc&) {
    give_back();
  }
}

// What is kept.
struct LeftoverCount {
  std::size_t things = 0, bytes = 0;
};
LeftoverCount leftovers() noexcept;

// Gives back, on this thread: waits for what runs on the devices, if anything is kept.
void give_back_mappings() noexcept;
void give_back_leftovers() noexcept;

}  // namespace tutti::cuda
