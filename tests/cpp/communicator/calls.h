// Calls that many of the communicator's tests make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tutti/call.h"
#include "tutti/communicator.h"

namespace tutti::test {

inline Call call_of(Collective collective, std::size_t count, Blocks in, Blocks out, int root = -1,
                    DataType dtype = DataType::kFloat32) {
  Call call;
  call.collective = collective;
  call.dtype = dtype;
  call.count = count;
  call.input = in;
  call.output = out;
  call.root = root;
  return call;
}

// In place.
inline Call all_reduce(std::vector<float>& x, ReduceOp op = ReduceOp::kSum) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kFloat32;
  call.op = op;
  call.count = x.size();
  call.input = call.output = Blocks::single(x.data(), x.size() * sizeof(float));
  return call;
}

// Of one value a rank.
inline std::int64_t sum_over(Communicator& group, std::int64_t value) {
  Call call;
  call.collective = Collective::kAllReduce;
  call.dtype = DataType::kInt64;
  call.count = 1;
  call.input = call.output = Blocks::single(&value, sizeof(value));
  group.run(call);
  return value;
}

}  // namespace tutti::test
