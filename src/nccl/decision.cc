#include "nccl/decision.h"

#include <array>
#include <limits>
#include <optional>

#include "base/collective_traits.h"

namespace tutti::nccl {
namespace {

constexpr std::size_t kMegabyte = std::size_t{1} << 20;

std::optional<DataType> type_of(ncclDataType_t type) noexcept {
  switch (static_cast<int>(type)) {
    case ncclInt8:
      return DataType::kInt8;
    case ncclUint8:
      return DataType::kUint8;
    case ncclInt32:
      return DataType::kInt32;
    case ncclUint32:
      return DataType::kUint32;
    case ncclInt64:
      return DataType::kInt64;
    case ncclUint64:
      return DataType::kUint64;
    case ncclFloat16:
      return DataType::kFloat16;
    case ncclFloat32:
      return DataType::kFloat32;
    case ncclFloat64:
      return DataType::kFloat64;
    case ncclBfloat16:
      return DataType::kBfloat16;
    case ncclFloat8e4m3:
      return DataType::kFloat8E4M3fn;
    case ncclFloat8e5m2:
      return DataType::kFloat8E5M2;
    default:
      return std::nullopt;
  }
}

std::optional<ReduceOp> op_of(const Arguments& call) noexcept {
  // A scaled sum of another type than the call's is for NCCL to refuse.
  if (call.scaled && call.scaled->type == call.type) return ReduceOp::kPremulSum;
  switch (static_cast<int>(call.op)) {
    case ncclSum:
      return ReduceOp::kSum;
    case ncclProd:
      return ReduceOp::kProduct;
    case ncclMax:
      return ReduceOp::kMax;
    case ncclMin:
      return ReduceOp::kMin;
    case ncclAvg:
      return ReduceOp::kAvg;
    default:
      return std::nullopt;
  }
}

// Of those that are collectives, in the order of Function; a message between two ranks is as a call without traits.
constexpr std::array<Collective, kCollectives> kOfFunction{
    Collective::kAllReduce,     Collective::kBroadcast, Collective::kReduce, Collective::kAllGather,
    Collective::kReduceScatter, Collective::kAllToAll,  Collective::kGather, Collective::kScatter};

Collective collective_of(Function function) noexcept {
  const auto index = static_cast<std::size_t>(function);
  return index < kOfFunction.size() ? kOfFunction[index] : Collective::kBarrier;
}

// How many blocks the message is: where there is one of every rank, all of them.
std::size_t blocks_of(Function function, int size) noexcept {
  const CollectiveTraits& traits = traits_of(collective_of(function));
  return traits.input_blocks || traits.output_blocks ? static_cast<std::size_t>(size) : 1;
}

}  // namespace

const char* to_string(Reason reason) noexcept {
  switch (reason) {
    case Reason::kNone:
      return "";
    case Reason::kCommunicator:
      return "communicator left to NCCL";
    case Reason::kSize:
      return "larger than the limit";
    case Reason::kLeft:
      return "the settings leave it";
    case Reason::kEmpty:
      return "empty";
    case Reason::kOperation:
      return "an operation that is not known";
    case Reason::kType:
      return "this operation on this type";
    case Reason::kConfig:
      return "options of its own";
    case Reason::kMessage:
      return "a message between two ranks";
    case Reason::kUnknown:
      return "arguments for NCCL to judge";
  }
  return "";
}

std::size_t measured_limit(Function function, int size) noexcept {
  switch (function) {
    case Function::kAllReduce:
    case Function::kAllGather:
    case Function::kReduceScatter:
      return size <= 4 ? 16 * kMegabyte : kMegabyte;  // more ranks than four have not been measured
    default:
      return kMegabyte / 4;  // one trip of packets; beside NCCL only the three above have been measured
  }
}

std::size_t message_bytes(const Arguments& call, int size) noexcept {
  const auto type = type_of(call.type);
  const std::size_t factor = (type ? size_of(*type) : 1) * blocks_of(call.function, size);
  constexpr std::size_t kMost = std::numeric_limits<std::size_t>::max();
  return call.count > kMost / factor ? kMost : call.count * factor;
}

Reason decide(const Arguments& call, const Common& common) noexcept {
  if (call.function == Function::kSend || call.function == Function::kReceive) return Reason::kMessage;
  if (call.configured) return Reason::kConfig;
  const auto type = type_of(call.type);
  const Collective collective = collective_of(call.function);
  if (!type || (has_root(collective) && (call.root < 0 || call.root >= common.size))) return Reason::kUnknown;
  if (call.count == 0) return Reason::kEmpty;
  if (reduces(collective)) {
    const auto op = op_of(call);
    if (!op) return Reason::kOperation;
    // Their rounding and overflow, and averages and products with a scalar of integers, are NCCL's own.
    if (size_of(*type) == 1 && is_floating(*type)) return Reason::kType;
    if ((*op == ReduceOp::kAvg || *op == ReduceOp::kPremulSum) && !is_floating(*type)) return Reason::kType;
  }
  const std::size_t said = common.max_bytes[static_cast<std::size_t>(call.function)];
  if (said == 0) return Reason::kLeft;
  if (said != kMeasured && message_bytes(call, common.size) > said) return Reason::kSize;
  return Reason::kNone;
}

Reason decide_without_plan(const Arguments& call, const Common& common) noexcept {
  const bool measured = common.max_bytes[static_cast<std::size_t>(call.function)] == kMeasured;
  const bool small = message_bytes(call, common.size) <= measured_limit(call.function, common.size);
  return measured && !small ? Reason::kSize : Reason::kNone;
}

Call to_call(const Arguments& from, int rank, int size) noexcept {
  Call call;
  call.dtype = type_of(from.type).value_or(DataType::kByte);
  call.op = op_of(from).value_or(ReduceOp::kSum);
  if (call.op == ReduceOp::kPremulSum) {
    call.factor = from.scaled->factor;
    call.device_factor = from.scaled->device_factor;
  }
  call.root = from.root;
  call.count = from.count;
  call.may_overlap = true;  // NCCL does not look; nor may a rank whose buffers do leave others waiting
  const std::size_t bytes = message_bytes(from, size) / blocks_of(from.function, size);
  // One block or one of every rank: Blocks says it by what reads it.
  call.input = Blocks::single(from.send, bytes);
  call.output = Blocks::single(from.recv, bytes);
  call.collective = collective_of(from.function);
  // Other ranks than the root need not give an input.
  if (call.collective == Collective::kBroadcast && rank != from.root) call.input = call.output;
  return call;
}

}  // namespace tutti::nccl
