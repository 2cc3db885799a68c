// Everything that the environment can set, parsed once into a value that is passed down.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace tutti {

struct Config {
  std::string log_level = "warning";  // TUTTI_LOG_LEVEL: error, warning, info, debug
  std::string host_id;                // TUTTI_HOST_ID: ranks with different ids never share memory
  std::string secret;                 // TUTTI_SECRET: shared secret of all connections; else random, by the store
  std::string master_address;         // MASTER_ADDR, set by launchers: tells which interface reaches the others
  std::string interface;              // TUTTI_SOCKET_IFNAME: interface for connections between hosts
  std::size_t stage_bytes = 0;        // TUTTI_STAGE_BYTES: staging a rank; 0 = chosen from the caches
  std::size_t arena_bytes = 0;        // TUTTI_ARENA_BYTES: address space of the mapped-tensor arena; 0 = chosen
  std::size_t shared_threshold_bytes = 65536;  // TUTTI_SHARED_THRESHOLD: smallest tensor of the shared allocator
  bool cross_memory = true;                    // TUTTI_CROSS_MEMORY: peers' memory may be read by the kernel
  bool shared_allocator = false;       // TUTTI_SHARED_ALLOCATOR: every large CPU tensor is mapped by the host's ranks
  int spins = -1;                      // TUTTI_SPINS: polls before a wait sleeps; -1 = chosen from cores and ranks
  int local_world_size = 0;            // LOCAL_WORLD_SIZE, set by launchers: ranks of the job on this host; 0 = unknown
  int flight_recorder_entries = 2000;  // TUTTI_FLIGHT_RECORDER_ENTRIES: calls remembered a communicator
  std::string algorithm;               // TUTTI_ALGORITHM: "all_reduce=ring,all_gather=staged" forces choices
  std::string plan_path;               // TUTTI_PLAN_PATH: a plan, or a folder of plans, that come before the built-in
  std::string tuning_path;          // TUTTI_TUNING_PATH: a tuning table, a folder of them, "none"; empty = user_config
  std::string cache_dir;            // TUTTI_CACHE_DIR: where verdicts on plans are kept, "none"; empty = user_cache
  std::string user_config;          // "tutti" in XDG_CONFIG_HOME or ~/.config; empty = there is no such place
  std::string user_cache;           // "tutti" in XDG_CACHE_HOME or ~/.cache; likewise
  std::string plugin_path;          // TUTTI_PLUGIN_PATH: directories of libtutti_cuda.so, before libtutti.so's own
  std::string nccl_library;         // TUTTI_NCCL_LIB_PATH: NCCL's file; empty: looked for
  std::string cuda_transport;       // TUTTI_CUDA_TRANSPORT: "peer" or "host" memory between GPUs; empty = chosen
  std::string cuda_algorithm;       // TUTTI_CUDA_ALGORITHM: "ll_one_shot@4x256" forces the choice on GPUs
  std::string cuda_compile = "on";  // TUTTI_CUDA_COMPILE: "off", "on" or "wait": whether plans are compiled for GPUs
  std::string nvrtc;                // TUTTI_NVRTC: the compiler's library; empty = looked for
  int cuda_max_blocks = 0;          // TUTTI_CUDA_MAX_BLOCKS: most blocks of a kernel on GPUs; 0 = chosen
  std::string cuda_watchdog = "log";  // TUTTI_CUDA_WATCHDOG: "log", "end" or "none": what follows a failure on a GPU
  std::chrono::milliseconds heartbeat{500};  // TUTTI_HEARTBEAT_MS: a sixth of a silence among hosts
};

// One variable of the environment, for documentation and `tutti info`.
struct ConfigVariable {
  std::string name;
  std::string value;  // what is in force
  std::string help;
};

// Reads the variables through `get` (null when unset). Throws Error(kInvalidArgument) naming the variable, its
// value and what it may be.
Config parse_config(const std::function<const char*(const char*)>& get);

// parse_config over the process's environment.
Config config_from_environment();

std::vector<ConfigVariable> describe(const Config& config);

}  // namespace tutti
