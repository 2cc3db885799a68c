// A long random program of collectives with payloads that tell every mistake: unique by call, rank and index, or equal
// to the flags that are about to come. For the host's stand-in of the device and for GPUs alike; all ranks make the
// same program from one seed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tutti/call.h"
#include "tutti/device/packets.cuh"

namespace tutti::cuda::test {

// Of one call, what its payload depends on. Elements are uint32, sums wrap.
struct StressCall {
  Collective collective = Collective::kAllReduce;
  std::uint32_t count = 1;  // elements of a block
  int root = 0;
  bool in_place = false;       // all-reduce and broadcast only
  std::uint64_t number = 0;    // unique in the program
  std::uint64_t sequence = 0;  // not 0: payloads are flags of the calls that follow this one
  int stream = 0;
  bool replay = false;
};

TUTTI_DEVICE std::uint32_t stress_value(const StressCall& c, int rank, std::size_t index) {
  if (c.sequence != 0) {
    const std::uint64_t coming = c.sequence + (index + static_cast<std::size_t>(rank)) % 4;
    return index % 2 == 0 ? device::ll_flag(coming) : static_cast<std::uint32_t>(device::ll128_flag(coming));
  }
  std::uint64_t x = c.number * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(rank) * 0x51ed2701 + index;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  return static_cast<std::uint32_t>(x >> 24);
}

TUTTI_DEVICE bool stress_many_in(Collective c) {
  return c == Collective::kReduceScatter || c == Collective::kScatter || c == Collective::kAllToAll;
}
TUTTI_DEVICE bool stress_many_out(Collective c) {
  return c == Collective::kAllGather || c == Collective::kGather || c == Collective::kAllToAll;
}
TUTTI_DEVICE std::size_t stress_inputs(const StressCall& c, int size) {
  return static_cast<std::size_t>(c.count) * (stress_many_in(c.collective) ? static_cast<std::size_t>(size) : 1);
}
TUTTI_DEVICE std::size_t stress_outputs(const StressCall& c, int size) {
  return static_cast<std::size_t>(c.count) * (stress_many_out(c.collective) ? static_cast<std::size_t>(size) : 1);
}
// Whether the rank gets anything.
TUTTI_DEVICE bool stress_receives(const StressCall& c, int rank) {
  return (c.collective != Collective::kReduce && c.collective != Collective::kGather) || rank == c.root;
}

// What element `index` of the rank's output must be.
TUTTI_DEVICE std::uint32_t stress_expected(const StressCall& c, int rank, int size, std::size_t index) {
  const std::size_t count = c.count;
  const std::size_t mine = static_cast<std::size_t>(rank) * count;
  switch (c.collective) {
    case Collective::kBroadcast:
      return stress_value(c, c.root, index);
    case Collective::kScatter:
      return stress_value(c, c.root, mine + index);
    case Collective::kAllGather:
    case Collective::kGather:
      return stress_value(c, static_cast<int>(index / count), index % count);
    case Collective::kAllToAll:
      return stress_value(c, static_cast<int>(index / count), mine + index % count);
    default:
      break;
  }
  std::uint32_t sum = 0;
  const std::size_t place = c.collective == Collective::kReduceScatter ? mine + index : index;
  for (int p = 0; p < size; ++p) sum += stress_value(c, p, place);
  return sum;
}

// `first_sequence` is the communicator's. Blocks have up to `most` elements, most of them few.
inline std::vector<StressCall> stress_program(std::uint64_t seed, std::size_t calls, int size, std::uint32_t most,
                                              std::uint64_t first_sequence) {
  constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kReduce,       Collective::kBroadcast,
                                 Collective::kAllGather, Collective::kGather,       Collective::kScatter,
                                 Collective::kAllToAll,  Collective::kReduceScatter};
  std::mt19937_64 random(seed);
  std::vector<StressCall> program(calls);
  for (std::size_t i = 0; i < calls; ++i) {
    StressCall& c = program[i];
    c.collective = kAll[random() % 8];
    c.count = 1 + static_cast<std::uint32_t>(random() % (std::uint64_t{1} << random() % 21));
    c.count = (c.count - 1) % most + 1;
    c.root = static_cast<int>(random() % static_cast<std::uint64_t>(size));
    const bool may_be = c.collective == Collective::kBroadcast || c.collective == Collective::kAllReduce;
    c.in_place = may_be && random() % 2 == 0;
    c.number = seed % 1000003 * 100003 + i + 1;
    if (random() % 4 == 0) c.sequence = first_sequence + i + 1;
    c.stream = static_cast<int>(random() % 2);
    c.replay = random() % 8 == 0;
  }
  return program;
}

inline std::string describe(const StressCall& c, std::size_t index) {
  return "call " + std::to_string(index) + ", " + std::string(to_string(c.collective)) + " u32[" +
         std::to_string(c.count) + "] root " + std::to_string(c.root) + (c.in_place ? " in place" : "") +
         (c.sequence != 0 ? ", payloads are flags" : "") + (c.replay ? ", replayed" : "");
}

inline Call call_of(const StressCall& c, std::byte* input, std::byte* output) {
  Call call;
  call.collective = c.collective;
  call.dtype = DataType::kUint32;
  call.op = ReduceOp::kSum;
  call.count = c.count;
  call.root = c.root;
  call.input = Blocks::single(input, c.count * 4);
  call.output = Blocks::single(output, c.count * 4);
  return call;
}

}  // namespace tutti::cuda::test
