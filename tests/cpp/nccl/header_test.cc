// Our declarations of NCCL's binary interface against its own headers, where they and CUDA's are installed: nothing
// here runs, it compiles or does not.
#include <gtest/gtest.h>

#ifdef TUTTI_NCCL_HEADERS
// Without it ncclResetDebugInit is left out.
#define NCCL_OS_LINUX
#include <cuda_runtime.h>
#include <nccl.h>
#include <nccl_device.h>

#include <type_traits>

#include "nccl/functions.h"

namespace ours {
#include "device/nccl/abi.h"
}

// The types' names in the table are the real ones here.
#define SAME(result, name, parameters, arguments) \
  static_assert(std::is_same_v<decltype(&::name), result(*) parameters>, #name);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
TUTTI_NCCL_INTERCEPTED(SAME)
TUTTI_NCCL_FORWARDED(SAME)

#define SAME_VALUE(name) static_assert(static_cast<int>(ours::name) == static_cast<int>(::name), #name);
SAME_VALUE(ncclSuccess)
SAME_VALUE(ncclUnhandledCudaError)
SAME_VALUE(ncclSystemError)
SAME_VALUE(ncclInternalError)
SAME_VALUE(ncclInvalidArgument)
SAME_VALUE(ncclInvalidUsage)
SAME_VALUE(ncclRemoteError)
SAME_VALUE(ncclInProgress)
SAME_VALUE(ncclTimeout)
SAME_VALUE(ncclSum)
SAME_VALUE(ncclProd)
SAME_VALUE(ncclMax)
SAME_VALUE(ncclMin)
SAME_VALUE(ncclAvg)
SAME_VALUE(ncclInt8)
SAME_VALUE(ncclUint8)
SAME_VALUE(ncclInt32)
SAME_VALUE(ncclUint32)
SAME_VALUE(ncclInt64)
SAME_VALUE(ncclUint64)
SAME_VALUE(ncclFloat16)
SAME_VALUE(ncclFloat32)
SAME_VALUE(ncclFloat64)
SAME_VALUE(ncclBfloat16)
SAME_VALUE(ncclFloat8e4m3)
SAME_VALUE(ncclFloat8e5m2)
#define SAME_SIZE(name) \
  static_assert(sizeof(ours::name) == sizeof(::name) && alignof(ours::name) == alignof(::name), #name);
SAME_SIZE(ncclUniqueId)
SAME_SIZE(ncclResult_t)
SAME_SIZE(ncclRedOp_t)
SAME_SIZE(ncclDataType_t)
SAME_SIZE(ncclScalarResidence_t)
SAME_SIZE(ncclCommMemStat_t)
SAME_SIZE(ncclCftTeamMode_t)
SAME_SIZE(ncclTeam_t)
SAME_SIZE(ncclMultimemHandle_t)
SAME_SIZE(ncclCftLeId_t)

TEST(NcclHeader, IsAsDeclaredHere) { SUCCEED() << "NCCL " << NCCL_VERSION_CODE; }
#else
TEST(NcclHeader, IsAsDeclaredHere) {
  GTEST_SKIP() << "built without NCCL's newest header: -DTUTTI_NCCL_PACKAGE=<folder of nvidia/nccl> names it";
}
#endif
