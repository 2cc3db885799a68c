// Collectives and messages: pointers and counts to calls of the communicator.
#include <limits>

#include "c/boundary.h"

namespace {

using tutti::Blocks;
using tutti::Call;
using tutti::Collective;
using tutti::DataType;
using tutti::ErrorKind;
using tutti::ReduceOp;
using tutti::throw_error;
using tutti::c::guarded;
using tutti::c::required;

template <class Name>
constexpr bool same(int number, Name name) {
  return number == static_cast<int>(name);
}
static_assert(same(TUTTI_BOOL, DataType::kBool) && same(TUTTI_UINT8, DataType::kUint8) &&
              same(TUTTI_INT8, DataType::kInt8) && same(TUTTI_UINT16, DataType::kUint16) &&
              same(TUTTI_INT16, DataType::kInt16) && same(TUTTI_UINT32, DataType::kUint32) &&
              same(TUTTI_INT32, DataType::kInt32) && same(TUTTI_UINT64, DataType::kUint64) &&
              same(TUTTI_INT64, DataType::kInt64) && same(TUTTI_FLOAT8_E4M3FN, DataType::kFloat8E4M3fn) &&
              same(TUTTI_FLOAT8_E5M2, DataType::kFloat8E5M2) && same(TUTTI_BFLOAT16, DataType::kBfloat16) &&
              same(TUTTI_FLOAT16, DataType::kFloat16) && same(TUTTI_FLOAT32, DataType::kFloat32) &&
              same(TUTTI_FLOAT64, DataType::kFloat64) && same(TUTTI_COMPLEX64, DataType::kComplex64) &&
              same(TUTTI_COMPLEX128, DataType::kComplex128) && same(TUTTI_BYTE, DataType::kByte));
static_assert(same(TUTTI_SUM, ReduceOp::kSum) && same(TUTTI_AVG, ReduceOp::kAvg) &&
              same(TUTTI_PRODUCT, ReduceOp::kProduct) && same(TUTTI_MIN, ReduceOp::kMin) &&
              same(TUTTI_MAX, ReduceOp::kMax) && same(TUTTI_BAND, ReduceOp::kBand) && same(TUTTI_BOR, ReduceOp::kBor) &&
              same(TUTTI_BXOR, ReduceOp::kBxor));
static_assert(TUTTI_ANY_SOURCE == tutti::kAnySource);

// A number from C may be any. Between those of tutti.h lie types that it does not list.
bool is_type(tutti_type type) {
  const auto lies = [type](int first, int last) { return type >= first && type <= last; };
  return lies(TUTTI_BOOL, TUTTI_FLOAT8_E5M2) || lies(TUTTI_BFLOAT16, TUTTI_FLOAT64) ||
         lies(TUTTI_COMPLEX64, TUTTI_BYTE);
}

DataType type_of(const char* function, tutti_type type) {
  if (!is_type(type)) {
    throw_error(ErrorKind::kInvalidArgument, std::string(function) + ": " + std::to_string(type) + " is no tutti_type");
  }
  return static_cast<DataType>(type);
}

ReduceOp op_of(const char* function, tutti_op op) {
  if (op < TUTTI_SUM || op > TUTTI_BXOR) {
    throw_error(ErrorKind::kInvalidArgument, std::string(function) + ": " + std::to_string(op) + " is no tutti_op");
  }
  return static_cast<ReduceOp>(op);
}

// The bytes of one of `blocks` blocks, which all fit into memory.
std::size_t block_bytes(const char* function, std::size_t count, DataType dtype, std::size_t blocks) {
  if (count > std::numeric_limits<std::size_t>::max() / 2 / blocks / size_of(dtype)) {
    throw_error(ErrorKind::kInvalidArgument,
                std::string(function) + ": " + std::to_string(count) + " elements are more than memory holds");
  }
  return count * size_of(dtype);
}

struct Arguments {
  const char* function;
  Collective collective;
  const void* input = nullptr;
  void* output = nullptr;
  std::size_t count = 0;
  tutti_type type = TUTTI_BYTE;
  tutti_op op = TUTTI_SUM;
  int root = -1;
};

tutti_result run(tutti_group* group, const Arguments& from) {
  return guarded([&] {
    tutti::Communicator& communicator = *required(group, from.function, "group").communicator;
    Call call;
    call.collective = from.collective;
    call.dtype = type_of(from.function, from.type);
    call.op = op_of(from.function, from.op);
    call.root = from.root;
    call.count = from.count;
    const auto ranks = static_cast<std::size_t>(communicator.size());
    const std::size_t bytes = block_bytes(from.function, from.count, call.dtype, ranks);
    // One block or one of every rank: the collective says which.
    call.input = Blocks::single(from.input, bytes);
    call.output = Blocks::single(from.output, bytes);
    communicator.run(call);
  });
}

}  // namespace

size_t tutti_type_bytes(tutti_type type) { return is_type(type) ? size_of(static_cast<DataType>(type)) : 0; }

tutti_result tutti_all_reduce(tutti_group* group, const void* input, void* output, size_t count, tutti_type type,
                              tutti_op op) {
  return run(group, {"tutti_all_reduce", Collective::kAllReduce, input, output, count, type, op});
}

tutti_result tutti_reduce(tutti_group* group, const void* input, void* output, size_t count, tutti_type type,
                          tutti_op op, int root) {
  return run(group, {"tutti_reduce", Collective::kReduce, input, output, count, type, op, root});
}

tutti_result tutti_broadcast(tutti_group* group, void* data, size_t count, tutti_type type, int root) {
  return run(group, {"tutti_broadcast", Collective::kBroadcast, data, data, count, type, TUTTI_SUM, root});
}

tutti_result tutti_all_gather(tutti_group* group, const void* input, void* output, size_t count, tutti_type type) {
  return run(group, {"tutti_all_gather", Collective::kAllGather, input, output, count, type});
}

tutti_result tutti_gather(tutti_group* group, const void* input, void* output, size_t count, tutti_type type,
                          int root) {
  return run(group, {"tutti_gather", Collective::kGather, input, output, count, type, TUTTI_SUM, root});
}

tutti_result tutti_scatter(tutti_group* group, const void* input, void* output, size_t count, tutti_type type,
                           int root) {
  return run(group, {"tutti_scatter", Collective::kScatter, input, output, count, type, TUTTI_SUM, root});
}

tutti_result tutti_reduce_scatter(tutti_group* group, const void* input, void* output, size_t count, tutti_type type,
                                  tutti_op op) {
  return run(group, {"tutti_reduce_scatter", Collective::kReduceScatter, input, output, count, type, op});
}

tutti_result tutti_all_to_all(tutti_group* group, const void* input, void* output, size_t count, tutti_type type) {
  return run(group, {"tutti_all_to_all", Collective::kAllToAll, input, output, count, type});
}

tutti_result tutti_barrier(tutti_group* group) { return run(group, {"tutti_barrier", Collective::kBarrier}); }

tutti_result tutti_send(tutti_group* group, const void* data, size_t count, tutti_type type, int peer, uint64_t tag) {
  return guarded([&] {
    tutti::Communicator& communicator = *required(group, "tutti_send", "group").communicator;
    const DataType dtype = type_of("tutti_send", type);
    block_bytes("tutti_send", count, dtype, 1);
    communicator.send(data, count, dtype, peer, tag);
  });
}

tutti_result tutti_recv(tutti_group* group, void* data, size_t count, tutti_type type, int peer, uint64_t tag,
                        int* source) {
  return guarded([&] {
    tutti::Communicator& communicator = *required(group, "tutti_recv", "group").communicator;
    const DataType dtype = type_of("tutti_recv", type);
    block_bytes("tutti_recv", count, dtype, 1);
    const int sender = communicator.recv(data, count, dtype, peer, tag);
    if (source != nullptr) *source = sender;
  });
}
