// Calls that many of the communicator's tests make.
#pragma once

#include <vector>

#include "tutti/call.h"

namespace tutti::test {

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

}  // namespace tutti::test
