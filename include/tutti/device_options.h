// How a communicator on devices is to be (tutti/stream_communicator.h).
#pragma once

#include <chrono>
#include <optional>
#include <string>

#include "tutti/config.h"

namespace tutti {

struct DeviceOptions {
  int device = -1;                                               // its index; -1: the calling thread's current one
  std::chrono::milliseconds timeout = std::chrono::minutes(10);  // of every wait on the device
  std::string name = "tutti";
  // Whether the ranks are all on one host, as the kernels of Tutti's own need it. Where they are not, or are more than
  // the kernels serve, calls on CUDA memory are NCCL's. Equal on all ranks.
  bool one_host = true;
  bool messages_only = false;  // exchange() alone: less memory; equal on all ranks
  // The algorithms that set_algorithms() is to give it first, as ranks compare them; empty: none.
  std::string given;
  bool lasting_streams = false;  // a promise: all streams of calls outlive the communicator; saves an event a call
  // Everything else: the environment's, until it is set.
  std::optional<Config> config;

  Config& settings() {
    if (!config) config = config_from_environment();
    return *config;
  }
};

}  // namespace tutti
