// How a communicator on GPUs is to be (tutti/cuda_communicator.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "tutti/config.h"

namespace tutti {

// cudaStream_t, without its header. Null is the legacy default stream.
using CudaStream = void*;

struct CudaOptions {
  int device = -1;                                               // -1: the calling thread's current device
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of every wait inside a kernel
  std::string name = "tutti";
  std::string secret;     // as Config::secret
  std::string transport;  // "" (choose), "peer" or "host": TUTTI_CUDA_TRANSPORT
  std::string algorithm;  // "" (choose), "ll_one_shot", "bulk_two_shot@16x512" (blocks, threads): a name of
                          // algorithms(), TUTTI_CUDA_ALGORITHM. Equal on all ranks.
  // Most blocks of a collective's kernel; the least that a rank says counts. 0: TUTTI_CUDA_MAX_BLOCKS, else 64.
  int max_blocks = 0;
  bool messages_only = false;  // exchange() alone: 4 MB of device memory, not 45 a rank; equal on all ranks
  std::string plan_path;       // plans that come before Tutti's own kernels; "": TUTTI_PLAN_PATH; "none"
  // Whether plans are compiled: "off", "on" (beside the calls) or "wait" (a size's first call waits for the compiler);
  // "": TUTTI_CUDA_COMPILE. Ranks may differ.
  std::string compile;
  bool lasting_streams = false;      // a promise: all streams of calls outlive the communicator; saves an event a call
  int flight_recorder_entries = -1;  // calls remembered; -1: TUTTI_FLIGHT_RECORDER_ENTRIES
  std::optional<Config> config;      // what else is set, and what is left open above; none: the environment's
  std::uint64_t first_sequence = 0;  // tests start near the wrap of a flag
};

}  // namespace tutti
