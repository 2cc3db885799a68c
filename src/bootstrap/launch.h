// What the launcher (torchrun, SLURM, mpirun, ...) told this process by its environment, and the store that follows
// from it. Launching itself is not Tutti's.
//
// Thread rule: free functions; the environment must not change meanwhile.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "tutti/store.h"

namespace tutti {

// A variable's value; null when it is not set.
using Environment = std::function<const char*(const char*)>;
Environment process_environment();

struct LaunchInfo {
  int rank = 0;
  int size = 1;
  int local_rank = -1;   // -1 when the launcher does not say
  std::string launcher;  // "environment", "Open MPI", "SLURM"; empty for a process on its own
};

// From RANK, WORLD_SIZE, LOCAL_RANK; else OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK; else SLURM_PROCID, SLURM_NTASKS,
// SLURM_LOCALID; else one process alone. Throws Error(kInvalidArgument) naming a variable that is missing or wrong.
LaunchInfo launch_info(const Environment& get);

// The store at TUTTI_MASTER_ADDR (else MASTER_ADDR) and TUTTI_MASTER_PORT (else MASTER_PORT), which rank 0 serves,
// with TUTTI_SECRET. torchrun serves a store of its own on MASTER_PORT (TORCHELASTIC_USE_AGENT_STORE): then the next
// port is taken. One rank alone needs none of them. Throws Error(kInvalidArgument) naming the variable to set,
// Error(kTimeout) if rank 0 does not come.
std::shared_ptr<Store> store_from_environment(int rank, int size, std::chrono::milliseconds timeout,
                                              const Environment& get = process_environment());

}  // namespace tutti
