// Whether a call runs on Tutti or goes to the real NCCL. All ranks must decide alike, so the decision follows only from
// what is equal on all of them: function, count, type, operation, number of ranks and settings that the ranks have
// compared.
#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "device/nccl/abi.h"
#include "nccl/settings.h"
#include "tutti/call.h"

namespace tutti::nccl {

// Why a call went to NCCL.
enum class Reason {
  kNone,          // it did not: Tutti ran it
  kCommunicator,  // its communicator has no group of Tutti's
  kSize,
  kLeft,       // the settings say so
  kEmpty,      // nothing to do
  kOperation,  // one that is not known
  kType,       // the operation on this type
  kConfig,     // options of the call's own
  kMessage,    // send and receive
  kUnknown,    // types and roots that NCCL refuses itself
};
inline constexpr int kReasons = 10;
const char* to_string(Reason reason) noexcept;

// What ncclRedOpCreatePreMulSum has made: the sum of inputs that each rank multiplies by a scalar of its own.
struct Scaled {
  ncclDataType_t type = ncclInt8;
  double factor = 1.0;
  const void* device_factor = nullptr;  // when set, instead: read by the GPU when the call runs
};

// The arguments of a collective.
struct Arguments {
  Function function = Function::kAllReduce;
  const void* send = nullptr;
  void* recv = nullptr;
  std::size_t count = 0;
  ncclDataType_t type = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int root = -1;
  ncclComm_t comm = nullptr;
  cudaStream_t stream = nullptr;
  bool configured = false;
  std::optional<Scaled> scaled = std::nullopt;  // what `op` stands for, if the program has made it on this communicator
};

// What a communicator's ranks have in common.
struct Common {
  int size = 0;
  bool plans = false;  // the program, or a file, has given plans that come before Tutti's kernels
  std::array<std::size_t, kCollectives> max_bytes{};
};

// The largest message that Tutti runs unless told otherwise: where its kernels were measured to be ahead of NCCL's on
// memory that is not registered (docs/performance.md), all_gather by its output and reduce_scatter by its input.
std::size_t measured_limit(Function function, int size) noexcept;

// Bytes of the whole message; the largest number where it would not fit.
std::size_t message_bytes(const Arguments& call, int size) noexcept;

// Whether Tutti may run the call at all.
Reason decide(const Arguments& call, const Common& common) noexcept;

// And whether its own kernels are to, where no plan of the program's does: not beyond what was measured.
Reason decide_without_plan(const Arguments& call, const Common& common) noexcept;

// The same call for Tutti. Only for what decide() has taken.
Call to_call(const Arguments& call, int rank, int size) noexcept;

}  // namespace tutti::nccl
