// NCCL's binary interface as far as Tutti calls it or passes it on: declared here, so that no header of NCCL or CUDA is
// needed to build. What is only passed on is opaque. tests/cpp/nccl/header_test.cc compares all of it with the real
// headers where they are installed.
//
// May be included inside a namespace, which that test does: includes nothing itself.
#pragma once

using ncclComm_t = struct ncclComm*;
using ncclWindow_t = struct ncclWindow_vidmem*;
using ncclParamHandle_t = struct ncclParamHandle*;
using cudaStream_t = struct CUstream_st*;

struct ncclUniqueId {
  char internal[128];
};

// A fixed type, as any number may come from a program.
enum ncclResult_t : unsigned {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,
};

enum ncclRedOp_t : unsigned {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclMaxRedOp = 0x7fffffff
};

enum ncclDataType_t : unsigned {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
};

enum ncclScalarResidence_t : unsigned { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };
enum ncclCommMemStat_t : unsigned { ncclStatGpuMemSuspend = 0 };
enum ncclCftTeamMode_t : unsigned { NCCL_CFT_TEAM_FLAT = 0 };

// By value in calls, so with their layout.
struct ncclTeam {
  int nRanks, rank, stride;
};
using ncclTeam_t = ncclTeam;
struct ncclMultimemHandle {
  void* mcBasePtr;
};
using ncclMultimemHandle_t = ncclMultimemHandle;

using ncclConfig_t = struct ncclConfig;
using ncclCollConfig_t = struct ncclCollConfig;
using ncclSimInfo_t = struct ncclSimInfo;
using ncclEncryptionConfig_t = struct ncclEncryptionConfig;
using ncclWaitSignalDesc_t = struct ncclWaitSignalDesc;
using ncclCommProperties_t = struct ncclCommProperties;
using ncclDevCommRequirements_t = struct ncclDevCommRequirements;
using ncclDevComm_t = struct ncclDevComm;
using ncclDevResourceRequirements_t = struct ncclDevResourceRequirements;
using ncclLsaBarrierHandle_t = struct ncclLsaBarrierHandle;
using ncclGinBarrierHandle_t = struct ncclGinBarrierHandle;
using ncclLLA2AHandle_t = struct ncclLLA2AHandle;
using ncclGinOutboxHandle_t = struct ncclGinOutboxHandle;
using ncclGinInboxA2AHandle_t = struct ncclGinInboxA2AHandle;
using ncclCftLeId_t = unsigned int;
