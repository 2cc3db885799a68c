// What CUDA offers on this machine: for `tutti doctor` and for programs that want to know before they make a group.
//
// Loads libtutti_cuda.so and initialises CUDA in this process. Thread rule: from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tutti {

// How one device reaches another one's memory.
enum class CudaReach {
  kNone,    // through host memory only
  kMapped,  // maps it
  kAtomic   // maps it and has native atomics there, as over NVLink
};

struct CudaDeviceReport {
  std::string name;  // "NVIDIA H200"
  int major = 0, minor = 0;
  int processors = 0;  // multiprocessors
  std::size_t memory_bytes = 0;
  bool virtual_memory = false;     // the driver's virtual memory management, which scratch memory is made by
  bool posix_descriptors = false;  // and its export to other processes
  bool ipc = false;                // CUDA's older IPC
  bool multicast = false;          // in hardware; never used unless TUTTI_MULTICAST is compiled and asked for
  std::vector<CudaReach> reach;    // by device
};

struct CudaReport {
  std::string plugin_problem;  // why libtutti_cuda.so cannot be loaded; empty: it can
  std::string problem;         // why no device can be used; empty: some can
  int driver_version = 0;      // as CUDA counts: 13000 is 13.0
  int runtime_version = 0;
  std::vector<CudaDeviceReport> devices;
};

// Throws nothing for what it finds.
CudaReport cuda_report();

}  // namespace tutti
