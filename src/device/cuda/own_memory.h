// Memory for Tutti's own records, on a GPU and pinned on the host, that is given back without waiting for the device,
// as cudaFree and cudaFreeHost do (leftovers.h says why that must not be): on a GPU from a pool of the process whose
// order is that of a stream of its own; on the host it stays pinned, for who asks next. A process so keeps as much
// pinned memory as its groups ever had at one time: some pages each.
//
// Thread rule: any thread, also while one captures. The current device is restored.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::cuda {

// `bytes` of undefined contents, usable on every stream of `device`. Whoever lets go of it has no kernel under way that
// uses it. Throws Error.
std::shared_ptr<std::byte> make_own_memory(int device, std::size_t bytes);

// `bytes` of undefined contents, for all devices of the process. The same rule. Throws Error.
std::shared_ptr<std::byte> make_own_pinned(std::size_t bytes);

}  // namespace tutti::cuda
