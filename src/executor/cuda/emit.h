// A plan as CUDA C++: one kernel for one rank, size of message, element type and operation.
//
// The source is made of the records that the interpreter would run (device_plan.h), so both do the same on the wire and
// in memory; compiled_block.cuh says what its functions do. Each kind of thread block (alike.h) is a function, chosen
// by blockIdx.x; everything but the addresses of buffers is a constant, or made of the block's number. Repetitions are
// loops again.
//
// The same request gives the same text, in any process and on any machine.
//
// Thread rule: pure functions.
#pragma once

#include <string>

#include "executor/cuda/device_plan.h"
#include "tutti/types.h"

namespace tutti::executor {

struct EmitRequest {
  DeviceVariant variant;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;  // an average is a sum, and variant.averages
  int most_cluster = 1;          // cluster_of()
};

struct PlanSource {
  std::string headers;  // the #include lines
  std::string block;    // `struct Block` in a namespace of the given name: what the plan does
  std::string kernel;   // its __global__ function, `tutti_plan`
  int workers = 0;      // lanes of a block of the GPU, whole warps, without the control warp
  int cluster = 1;      // blocks of the GPU that run a thread block together

  std::string text() const { return headers + block + kernel; }
};

// Throws what DevicePlan::records() throws, and Unsupported for a plan with too many different operations for one
// kernel. `space`: a name of C++.
PlanSource emit(const DevicePlan& plan, const EmitRequest& request, const std::string& space = "compiled_plan");

}  // namespace tutti::executor
