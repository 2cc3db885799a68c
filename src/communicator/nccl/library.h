// The functions of NCCL's that a group on it calls, from the library that is found in the process (device/nccl/find.h).
//
// Ownership: loaded at first use, for as long as the process. Thread rule: any thread.
#pragma once

#include <string>

#include "device/nccl/abi.h"
#include "tutti/error.h"

namespace tutti {

// clang-format off
#define TUTTI_NCCL_GROUP_FUNCTIONS(X) \
  X(ncclResult_t, ncclGetVersion, (int* version)) \
  X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId* id)) \
  X(ncclResult_t, ncclCommInitRank, (ncclComm_t* comm, int ranks, ncclUniqueId id, int rank)) \
  X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm)) \
  X(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) \
  X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error)) \
  X(const char*, ncclGetLastError, (ncclComm_t comm)) \
  X(const char*, ncclGetErrorString, (ncclResult_t result)) \
  X(ncclResult_t, ncclGroupStart, ()) \
  X(ncclResult_t, ncclGroupEnd, ()) \
  X(ncclResult_t, ncclRedOpCreatePreMulSum, (ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t place, ncclComm_t comm)) \
  X(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm)) \
  X(ncclResult_t, ncclAllReduce, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclReduce, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclBroadcast, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclAllGather, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclReduceScatter, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclSend, (const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream)) \
  X(ncclResult_t, ncclRecv, (void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream))
// clang-format on

struct NcclLibrary {
#define TUTTI_NCCL_POINTER(result, name, parameters) result(*name) parameters = nullptr;
  TUTTI_NCCL_GROUP_FUNCTIONS(TUTTI_NCCL_POINTER)
#undef TUTTI_NCCL_POINTER
  std::string problem;  // why there is none; empty: all pointers are set
  std::string version;  // "2.28.9"
};

// That of the process. `chosen`: TUTTI_NCCL_LIB_PATH, of the first caller.
const NcclLibrary& nccl_library(const std::string& chosen);

// An error of NCCL's as one of Tutti's: "`what`: unhandled system error (…)".
Error nccl_error(const NcclLibrary& nccl, ncclResult_t result, const std::string& what);

}  // namespace tutti
