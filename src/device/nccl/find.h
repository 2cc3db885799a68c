// Finds NCCL's library in a process: for what has its name and passes calls on to it (src/nccl), and for groups whose
// calls on CUDA memory are its (communicator/nccl).
//
// Ownership: what is found stays loaded as long as the process. Thread rule: any thread.
#pragma once

#include <string>

namespace tutti {

// The name by which the linker finds it.
inline constexpr const char* kNcclFile = "libnccl.so.2";
// Every NCCL since 2.4 has it.
inline constexpr const char* kSomeNcclFunction = "ncclGetVersion";

// Whether a function of that name is that of a library which is no NCCL, but has its names. Null: none is.
using IsOwnNccl = bool (*)(const void* function);

// The library in `chosen`, a path that the variable TUTTI_NCCL_LIB_PATH gives, or where that is empty the one that the
// process has loaded, else one by the linker's paths or beside the package whose library the function `beside` lies in.
// Null: `problem` says why.
void* find_nccl(const std::string& chosen, IsOwnNccl is_own, const void* beside, std::string& problem);

// "2.28.9", of what ncclGetVersion gives.
std::string nccl_version(int code);

}  // namespace tutti
