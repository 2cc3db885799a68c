// One collective in registered memory, checked.
#pragma once

#include "cuda/gpu/foreign_memory.h"
#include "cuda/gpu/gpu_ranks.h"

namespace tutti::cuda::test {

// Uploads the input to `input` and poisons the output.
inline Buffers buffers_at(Rank& rank, const CollectiveCase& c, std::byte* input, std::byte* output) {
  if (input != output) TUTTI_CUDA_OK(cudaMemsetAsync(output, 0xa5, c.output_bytes(), rank.stream));
  rank.upload(input, c.input(rank.rank), rank.stream);
  return {input, output, c.call(input, output)};
}

// Runs it and throws if the result is wrong, or if it has not run as `direct` says.
inline void run_registered(Rank& rank, const CollectiveCase& c, std::byte* input, std::byte* output, bool direct,
                           const std::string& what) {
  const Buffers b = buffers_at(rank, c, input, output);
  const std::uint64_t before = rank.comm->direct_calls();
  const std::string algorithm = rank.comm->explain(b.call);
  rank.comm->run(b.call, rank.stream);
  rank.comm->synchronize(rank.stream);
  verify(rank, c, b, what + " by " + algorithm);
  if (rank.comm->direct_calls() - before != (direct ? 1 : 0) || (algorithm == "registered") != direct) {
    throw std::runtime_error(what + " ran " + (direct ? "with" : "without") + " copies, by " + algorithm);
  }
}

inline CaseShape sum_of(Collective collective, std::size_t count) {
  CaseShape shape;
  shape.collective = collective;
  shape.count = count;
  return shape;
}

}  // namespace tutti::cuda::test
