#include "communicator/nccl/steps.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "base/collective_traits.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Kind = NcclStep::Kind;

constexpr std::size_t kBarrierBytes = 1;

// What NCCL computes with. Complex numbers are added part by part.
std::optional<ncclDataType_t> type_of(DataType dtype) {
  switch (dtype) {
    case DataType::kBool:
    case DataType::kUint8:
      return ncclUint8;
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kUint32:
      return ncclUint32;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kUint64:
      return ncclUint64;
    case DataType::kFloat8E4M3fn:
      return ncclFloat8e4m3;
    case DataType::kFloat8E5M2:
      return ncclFloat8e5m2;
    case DataType::kBfloat16:
      return ncclBfloat16;
    case DataType::kFloat16:
    case DataType::kComplex32:
      return ncclFloat16;
    case DataType::kFloat32:
    case DataType::kComplex64:
      return ncclFloat32;
    case DataType::kFloat64:
    case DataType::kComplex128:
      return ncclFloat64;
    default:
      return std::nullopt;
  }
}

// A bool is 0 or 1: sums and "or" are the larger of two, products and "and" the smaller.
std::optional<ncclRedOp_t> op_of(DataType dtype, ReduceOp op) {
  const bool boolean = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return boolean ? ncclMax : ncclSum;
    case ReduceOp::kAvg:
      return boolean ? std::nullopt : std::optional(ncclAvg);
    case ReduceOp::kPremulSum:
      return (is_floating(dtype) && size_of(dtype) > 1) || is_complex(dtype) ? std::optional(ncclSum) : std::nullopt;
    case ReduceOp::kProduct:
      if (is_complex(dtype)) return std::nullopt;
      return boolean ? ncclMin : ncclProd;
    case ReduceOp::kMin:
      return is_complex(dtype) ? std::nullopt : std::optional(ncclMin);
    case ReduceOp::kMax:
      return is_complex(dtype) ? std::nullopt : std::optional(ncclMax);
    case ReduceOp::kBand:
      return boolean ? std::optional(ncclMin) : std::nullopt;
    case ReduceOp::kBor:
      return boolean ? std::optional(ncclMax) : std::nullopt;
    case ReduceOp::kBxor:
      return std::nullopt;
  }
  return std::nullopt;
}

// Blocks of one size that lie apart, though the call is of blocks one behind the other.
bool apart(const Call& call, const Blocks& blocks) { return !call.uneven && blocks.pointers != nullptr; }

// The memory of `blocks` as one piece: theirs, or the scratch into or out of which they are copied.
std::byte* whole(const Call& call, const Blocks& blocks, std::byte* scratch) {
  return apart(call, blocks) ? scratch : blocks.base;
}

void copy(std::vector<NcclCopy>& copies, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes > 0 && to != from) copies.push_back({to, from, bytes});
}

class Maker {
 public:
  Maker(const Call& call, int rank, int size) : call_(call), rank_(rank), size_(size) {
    if (!reduces(call.collective)) return;
    made_.type = *type_of(call.dtype);
    made_.op = *op_of(call.dtype, call.op);
    made_.scaled = call.op == ReduceOp::kPremulSum;
    unit_ = size_of(call.dtype) / (is_complex(call.dtype) ? 2 : 1);
  }

  NcclCall make(std::byte* scratch) && {
    const Blocks &in = call_.input, &out = call_.output;
    switch (call_.collective) {
      case Collective::kAllReduce:
        add(Kind::kAllReduce, in.data(0), out.data(0), in.size(0));
        break;
      case Collective::kReduce:
        add(Kind::kReduce, in.data(0), rank_ == call_.root ? out.data(0) : nullptr, in.size(0), call_.root);
        break;
      case Collective::kBroadcast:
        add(Kind::kBroadcast, rank_ == call_.root ? in.data(0) : out.data(0), out.data(0), out.size(0), call_.root);
        break;
      case Collective::kAllGather:
        all_gather(scratch);
        break;
      case Collective::kReduceScatter:
        reduce_scatter(scratch);
        break;
      case Collective::kGather:
        if (rank_ == call_.root) {
          receive_all();
          copy(made_.before, out.data(rank_), in.data(0), out.size(rank_));
        } else {
          message(Kind::kSend, in.data(0), in.size(0), call_.root);
        }
        break;
      case Collective::kScatter:
        if (rank_ == call_.root) {
          send_all();
          copy(made_.before, out.data(0), in.data(rank_), in.size(rank_));
        } else {
          message(Kind::kRecv, out.data(0), out.size(0), call_.root);
        }
        break;
      case Collective::kAllToAll:
        send_all();
        receive_all();
        copy(made_.before, out.data(rank_), in.data(rank_), out.size(rank_));
        break;
      case Collective::kBarrier:
        add(Kind::kAllReduce, scratch, scratch, kBarrierBytes);
        break;
    }
    return std::move(made_);
  }

 private:
  void add(Kind kind, const std::byte* send, std::byte* recv, std::size_t bytes, int peer = -1) {
    made_.steps.push_back({kind, send, recv, bytes / unit_, peer});
  }
  // Both ranks of the pair know its size: none is left out on one side alone.
  void message(Kind kind, std::byte* data, std::size_t bytes, int peer) {
    if (bytes == 0) return;
    if (kind == Kind::kSend) return add(kind, data, nullptr, bytes, peer);
    add(kind, nullptr, data, bytes, peer);
  }
  void send_all() {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) message(Kind::kSend, call_.input.data(r), call_.input.size(r), r);
    }
  }
  void receive_all() {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) message(Kind::kRecv, call_.output.data(r), call_.output.size(r), r);
    }
  }

  // Blocks that differ are one broadcast a rank: all ranks know all sizes.
  void all_gather(std::byte* scratch) {
    const Blocks &in = call_.input, &out = call_.output;
    if (call_.uneven) {
      for (int r = 0; r < size_; ++r) {
        if (out.size(r) == 0) continue;
        add(Kind::kBroadcast, r == rank_ ? in.data(0) : out.data(r), out.data(r), out.size(r), r);
      }
      return;
    }
    std::byte* const to = whole(call_, out, scratch);
    add(Kind::kAllGather, in.data(0), to, in.size(0));
    if (!apart(call_, out)) return;
    for (int r = 0; r < size_; ++r) {
      copy(made_.after, out.data(r), to + static_cast<std::size_t>(r) * in.size(0), in.size(0));
    }
  }
  void reduce_scatter(std::byte* scratch) {
    const Blocks &in = call_.input, &out = call_.output;
    if (call_.uneven) {
      for (int r = 0; r < size_; ++r) {
        if (in.size(r) == 0) continue;
        add(Kind::kReduce, in.data(r), r == rank_ ? out.data(0) : nullptr, in.size(r), r);
      }
      return;
    }
    std::byte* const from = whole(call_, in, scratch);
    for (int r = 0; apart(call_, in) && r < size_; ++r) {
      copy(made_.before, from + static_cast<std::size_t>(r) * out.size(0), in.data(r), out.size(0));
    }
    add(Kind::kReduceScatter, from, out.data(0), out.size(0));
  }

  const Call& call_;
  const int rank_, size_;
  std::size_t unit_ = 1;  // bytes of what NCCL counts: what is moved is bytes
  NcclCall made_;
};

template <class Bits>
void put(std::array<std::byte, 8>& bytes, Bits bits) {
  std::memcpy(bytes.data(), &bits, sizeof bits);
}

}  // namespace

void check_nccl_reduction(const Call& call, bool fp8) {
  const auto type = type_of(call.dtype);
  const bool has = type && op_of(call.dtype, call.op);
  const bool too_old = !fp8 && (type == ncclFloat8e4m3 || type == ncclFloat8e5m2);
  if (!reduces(call.collective) || (has && !too_old)) return;
  throw_error(ErrorKind::kUnsupported,
              std::string(to_string(call.collective)) + ": NCCL, which runs this group's calls on GPUs, has no " +
                  std::string(to_string(call.op)) + " of " + std::string(to_string(call.dtype)) +
                  (has ? " before sm_90" : "") + ": use another type, or reduce on the CPU");
}

std::size_t nccl_scratch_bytes(const Call& call, int size) {
  const auto all = static_cast<std::size_t>(size);
  if (call.collective == Collective::kAllGather && apart(call, call.output)) return all * call.input.size(0);
  if (call.collective == Collective::kReduceScatter && apart(call, call.input)) return all * call.output.size(0);
  return 0;
}

NcclCall make_nccl_call(const Call& call, int rank, int size, std::byte* scratch) {
  return Maker(call, rank, size).make(scratch);
}

std::array<std::byte, 8> nccl_factor(const Call& call) {
  std::array<std::byte, 8> bytes{};
  switch (call.dtype) {
    case DataType::kFloat64:
    case DataType::kComplex128:
      put(bytes, call.factor);
      break;
    case DataType::kFloat16:
    case DataType::kComplex32:
      put(bytes, static_cast<_Float16>(call.factor));
      break;
    case DataType::kBfloat16: {  // the upper half of an fp32, to nearest even
      const auto bits = std::bit_cast<std::uint32_t>(static_cast<float>(call.factor));
      put(bytes, static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16));
      break;
    }
    default:
      put(bytes, static_cast<float>(call.factor));
  }
  return bytes;
}

}  // namespace tutti
