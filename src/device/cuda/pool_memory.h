// Memory of one device that any process of the host can map: what PyTorch's pools and buffers of the program's own are
// made of.
//
// Ownership: freed with its last share; what a peer maps lives on until it is unmapped there. Thread rule: any thread,
// also while one captures.
#pragma once

#include <cstddef>
#include <memory>

namespace tutti::cuda {

// With undefined contents. Its last share waits for the device's work. Throws Error.
std::shared_ptr<std::byte> make_pool_memory(int device, std::size_t bytes);

}  // namespace tutti::cuda
