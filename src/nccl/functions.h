// Every function that NCCL's library exports (2.32.3): result, name, parameters, arguments.
//
// Above an older NCCL those that it lacks answer ncclInvalidUsage. Names of types are NCCL's, so that a test can
// compile the table against the real headers.
#pragma once

// What src/nccl/intercepted.cc looks at.
// clang-format off
#define TUTTI_NCCL_INTERCEPTED(X) \
  X(ncclResult_t, ncclGetUniqueId, (ncclUniqueId* id), (id)) \
  X(ncclResult_t, ncclCommInitRank, (ncclComm_t* comm, int ranks, ncclUniqueId id, int rank), (comm, ranks, id, rank)) \
  X(ncclResult_t, ncclCommInitRankConfig, (ncclComm_t* comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config), (comm, ranks, id, rank, config)) \
  X(ncclResult_t, ncclCommInitRankScalable, (ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId* id, ncclConfig_t* config), (comm, ranks, rank, ids, id, config)) \
  X(ncclResult_t, ncclCommInitAll, (ncclComm_t* comm, int devices, const int* list), (comm, devices, list)) \
  X(ncclResult_t, ncclCommSplit, (ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t* config), (parent, color, key, comm, config)) \
  X(ncclResult_t, ncclCommShrink, (ncclComm_t parent, int* excluded, int count, ncclComm_t* comm, ncclConfig_t* config, int flags), (parent, excluded, count, comm, config, flags)) \
  X(ncclResult_t, ncclCommGrow, (ncclComm_t parent, int ranks, const ncclUniqueId* id, int rank, ncclComm_t* comm, ncclConfig_t* config), (parent, ranks, id, rank, comm, config)) \
  X(ncclResult_t, ncclCommFinalize, (ncclComm_t comm), (comm)) \
  X(ncclResult_t, ncclCommDestroy, (ncclComm_t comm), (comm)) \
  X(ncclResult_t, ncclCommAbort, (ncclComm_t comm), (comm)) \
  X(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int flags), (comm, flags)) \
  X(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t* error), (comm, error)) \
  X(const char*, ncclGetLastError, (ncclComm_t comm), (comm)) \
  X(const char*, ncclGetErrorString, (ncclResult_t result), (result)) \
  X(ncclResult_t, ncclGroupStart, (), ()) \
  X(ncclResult_t, ncclGroupEnd, (), ()) \
  X(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t* info), (info)) \
  X(ncclResult_t, ncclRedOpCreatePreMulSum, (ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t place, ncclComm_t comm), (op, scalar, type, place, comm)) \
  X(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t comm), (op, comm)) \
  X(ncclResult_t, ncclAllReduce, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, op, comm, stream)) \
  X(ncclResult_t, ncclBcast, (void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), (data, count, type, root, comm, stream)) \
  X(ncclResult_t, ncclBroadcast, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, root, comm, stream)) \
  X(ncclResult_t, ncclReduce, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, op, root, comm, stream)) \
  X(ncclResult_t, ncclAllGather, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, comm, stream)) \
  X(ncclResult_t, ncclReduceScatter, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, op, comm, stream)) \
  X(ncclResult_t, ncclAlltoAll, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, comm, stream)) \
  X(ncclResult_t, ncclGather, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, root, comm, stream)) \
  X(ncclResult_t, ncclScatter, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream), (send, recv, count, type, root, comm, stream)) \
  X(ncclResult_t, ncclSend, (const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream), (data, count, type, peer, comm, stream)) \
  X(ncclResult_t, ncclRecv, (void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream), (data, count, type, peer, comm, stream)) \
  X(ncclResult_t, ncclAllReduceConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, op, comm, stream, config)) \
  X(ncclResult_t, ncclBroadcastConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, root, comm, stream, config)) \
  X(ncclResult_t, ncclReduceConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, op, root, comm, stream, config)) \
  X(ncclResult_t, ncclAllGatherConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, comm, stream, config)) \
  X(ncclResult_t, ncclReduceScatterConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, op, comm, stream, config)) \
  X(ncclResult_t, ncclAlltoAllConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, comm, stream, config)) \
  X(ncclResult_t, ncclGatherConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, root, comm, stream, config)) \
  X(ncclResult_t, ncclScatterConfig, (const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm, cudaStream_t stream, const ncclCollConfig_t* config), (send, recv, count, type, root, comm, stream, config))

// What is passed on as it is.
#define TUTTI_NCCL_FORWARDED(X) \
  X(ncclResult_t, ncclMemAlloc, (void** memory, size_t bytes), (memory, bytes)) \
  X(ncclResult_t, ncclMemFree, (void* memory), (memory)) \
  X(ncclResult_t, ncclGetVersion, (int* version), (version)) \
  X(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId* id), (comm, id)) \
  X(void, ncclResetDebugInit, (), ()) \
  X(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int* count), (comm, count)) \
  X(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int* device), (comm, device)) \
  X(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int* rank), (comm, rank)) \
  X(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void* memory, size_t bytes, void** handle), (comm, memory, bytes, handle)) \
  X(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void* handle), (comm, handle)) \
  X(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags), (comm, flags)) \
  X(ncclResult_t, ncclCommResume, (ncclComm_t comm), (comm)) \
  X(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t what, uint64_t* value), (comm, what, value)) \
  X(ncclResult_t, ncclCommWindowRegister, (ncclComm_t comm, void* memory, size_t bytes, ncclWindow_t* window, int flags), (comm, memory, bytes, window, flags)) \
  X(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t window), (comm, window)) \
  X(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t window, void** memory), (comm, window, memory)) \
  X(ncclResult_t, ncclPutSignal, (const void* data, size_t count, ncclDataType_t type, int peer, ncclWindow_t window, size_t offset, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream), (data, count, type, peer, window, offset, signal, context, flags, comm, stream)) \
  X(ncclResult_t, ncclSignal, (int peer, int signal, int context, unsigned int flags, ncclComm_t comm, cudaStream_t stream), (peer, signal, context, flags, comm, stream)) \
  X(ncclResult_t, ncclWaitSignal, (int count, ncclWaitSignalDesc_t* signals, ncclComm_t comm, cudaStream_t stream), (count, signals, comm, stream)) \
  X(ncclResult_t, ncclSetEncryption, (const ncclEncryptionConfig_t* config), (config)) \
  X(ncclResult_t, ncclParamBind, (ncclParamHandle_t* out, const char* key), (out, key)) \
  X(ncclResult_t, ncclParamGetI8, (ncclParamHandle_t handle, int8_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetI16, (ncclParamHandle_t handle, int16_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetI32, (ncclParamHandle_t handle, int32_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetI64, (ncclParamHandle_t handle, int64_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetU8, (ncclParamHandle_t handle, uint8_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetU16, (ncclParamHandle_t handle, uint16_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetU32, (ncclParamHandle_t handle, uint32_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetU64, (ncclParamHandle_t handle, uint64_t* out), (handle, out)) \
  X(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t handle, const char** out), (handle, out)) \
  X(ncclResult_t, ncclParamGet, (ncclParamHandle_t handle, void* out, int room, int* bytes), (handle, out, room, bytes)) \
  X(ncclResult_t, ncclParamGetParameter, (const char* key, const char** value, int* length), (key, value, length)) \
  X(ncclResult_t, ncclParamGetAllParameterKeys, (const char*** table, int* length), (table, length)) \
  X(void, ncclParamDumpAll, (), ()) \
  X(ncclResult_t, ncclCommQueryProperties, (ncclComm_t comm, ncclCommProperties_t* properties), (comm, properties)) \
  X(ncclResult_t, ncclDevCommCreate, (ncclComm_t comm, ncclDevCommRequirements_t const* wanted, ncclDevComm_t* out), (comm, wanted, out)) \
  X(ncclResult_t, ncclDevCommDestroy, (ncclComm_t comm, ncclDevComm_t const* device), (comm, device)) \
  X(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t window, size_t offset, void** out), (window, offset, out)) \
  X(ncclResult_t, ncclGetMultimemDevicePointer, (ncclWindow_t window, size_t offset, ncclMultimemHandle_t handle, void** out), (window, offset, handle, out)) \
  X(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t window, size_t offset, int peer, void** out), (window, offset, peer, out)) \
  X(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t window, size_t offset, int peer, void** out), (window, offset, peer, out)) \
  X(ncclResult_t, ncclGetMultimemDeviceLeInfo, (ncclWindow_t window, size_t offset, ncclCftLeId_t* id, size_t* out), (window, offset, id, out)) \
  X(ncclResult_t, ncclGetCftDeviceLeInfo, (ncclWindow_t window, size_t offset, int peer, ncclTeam_t team, ncclCftLeId_t* id, size_t* out), (window, offset, peer, team, id, out)) \
  X(ncclResult_t, ncclGetPeerDeviceLeInfo, (ncclWindow_t window, size_t offset, int peer, ncclCftLeId_t* id, size_t* out), (window, offset, peer, id, out)) \
  X(ncclTeam_t, ncclTeamWorld, (ncclComm_t comm), (comm)) \
  X(ncclTeam_t, ncclTeamLsa, (ncclComm_t comm), (comm)) \
  X(ncclTeam_t, ncclTeamCft, (ncclComm_t comm, ncclCftTeamMode_t mode), (comm, mode)) \
  X(ncclTeam_t, ncclTeamCftMultimem, (ncclComm_t comm), (comm)) \
  X(ncclTeam_t, ncclTeamRail, (ncclComm_t comm), (comm)) \
  X(int, ncclTeamRankToWorld, (ncclComm_t comm, ncclTeam_t team, int rank), (comm, team, rank)) \
  X(int, ncclTeamRankToLsa, (ncclComm_t comm, ncclTeam_t team, int rank), (comm, team, rank)) \
  X(ncclResult_t, ncclLsaBarrierCreateRequirement, (ncclTeam_t team, int count, ncclLsaBarrierHandle_t* handle, ncclDevResourceRequirements_t* out), (team, count, handle, out)) \
  X(ncclResult_t, ncclGinBarrierCreateRequirement, (ncclComm_t comm, ncclTeam_t team, int count, ncclGinBarrierHandle_t* handle, ncclDevResourceRequirements_t* out), (comm, team, count, handle, out)) \
  X(int, ncclLLA2ACalcSlots, (int count, int bytes), (count, bytes)) \
  X(ncclResult_t, ncclLLA2ACreateRequirement, (int blocks, int slots, ncclLLA2AHandle_t* handle, ncclDevResourceRequirements_t* out), (blocks, slots, handle, out))

// Exported by the library, in its headers only for another system.
#define TUTTI_NCCL_UNDECLARED(X) \
  X(ncclResult_t, ncclGinOutboxCreateRequirement, (int blocks, int log2_bytes, ncclGinOutboxHandle_t* handle, ncclDevResourceRequirements_t* out), (blocks, log2_bytes, handle, out)) \
  X(ncclResult_t, ncclGinInboxA2ACreateRequirement, (ncclTeam_t peers, int blocks, int log2_bytes, ncclGinInboxA2AHandle_t* handle, ncclDevResourceRequirements_t* out), (peers, blocks, log2_bytes, handle, out))
// clang-format on

#define TUTTI_NCCL_FUNCTIONS(X) TUTTI_NCCL_INTERCEPTED(X) TUTTI_NCCL_FORWARDED(X) TUTTI_NCCL_UNDECLARED(X)
