// Device-side channels of Tutti, for CUDA kernels of one's own. Header-only, no torch, no library to link.
//
//   memory.cuh     loads and stores of shared memory, with their order in the name
//   tensor.cuh     plain loads and stores of tensors at any alignment
//   wait.cuh       waits that end: deadline, abort, failure of a peer
//   packets.cuh    LL and LL128: data and flag in one store
//   channel.cuh    MemoryChannel: put, get, signal, wait, packets; Semaphore
//   port.cuh       PortChannel: put, signal, flush by copy engines, through a thread of the host
//   multicast.cuh  SwitchChannel: multicast in software; in hardware behind TUTTI_MULTICAST=1
#pragma once

#include "tutti/device/channel.cuh"
#include "tutti/device/multicast.cuh"
#include "tutti/device/port.cuh"
