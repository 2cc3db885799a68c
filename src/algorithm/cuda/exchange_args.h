// What a kernel does with the caller's memory: a value made by the host for each call.
#pragma once

#include <cstddef>
#include <cstdint>

#include "device/cuda/reduce_any.h"
#include "tutti/device/memory.cuh"

namespace tutti::cuda {

// Every collective but the two-shot all-reduce is one exchange: this rank sends `send[p]` to each rank p, and either
// copies what each rank has sent to `receive[p]`, or reduces it, its own part included, into `output`. What there is
// not has zero bytes. The tables of collectives are in launch_args.h.
struct ExchangeArgs {
  const std::byte* send[device::kMaxRanks] = {};  // [rank]: this rank's own part
  std::size_t send_bytes[device::kMaxRanks] = {};
  std::byte* receive[device::kMaxRanks] = {};
  std::size_t receive_bytes[device::kMaxRanks] = {};
  std::byte* output = nullptr;  // of a reduction: as many bytes as every rank sends here
  std::size_t output_bytes = 0;
  std::size_t block_bytes = 0;  // of every part, what one block moves: equal on all ranks, a multiple of 16
  std::size_t piece_bytes = 0;  // bulk: of that, what it moves at a time
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  ReduceSpec spec;
};

// Where this rank's own part is to be copied: null if there is none, or if it lies there. Ranks differ in it.
TUTTI_DEVICE std::byte* kept_part(const ExchangeArgs& args, int rank) {
  return args.receive_bytes[rank] > 0 && args.receive[rank] != args.send[rank] ? args.receive[rank] : nullptr;
}

// The common case of an exchange, small enough for the first lines of a kernel's parameters: equal parts, laid out one
// after another. Rank p gets `bytes` from input + p * in_stride; what it sends goes to output + p * out_stride, or all
// is reduced to `output`. On the wire the same as the ExchangeArgs of the same call.
struct UniformArgs {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t bytes = 0;
  std::size_t in_stride = 0;  // 0: the same part to all
  std::size_t out_stride = 0;
  std::size_t block_bytes = 0;
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  ReduceSpec spec;
};

// A two-shot all-reduce: rank p reduces the p-th chunk of every rank's input and sends the result to all.
struct TwoShotArgs {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;  // may be the input
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;  // of each rank's chunk, a multiple of 16
  std::size_t block_bytes = 0;  // of every chunk, what one block moves, a multiple of 16
  std::size_t piece_bytes = 0;  // bulk: of that, what it moves at a time
  std::uint32_t fingerprint = 0;
  std::uint32_t ticket = 0;  // device::Awaited
  ReduceSpec spec;
};

// A range of bytes.
struct Range {
  std::size_t begin = 0, end = 0;
  TUTTI_DEVICE std::size_t bytes() const { return end - begin; }
};

// The `index`-th part of `each` bytes out of `total`; the last one may be short, later ones are empty.
TUTTI_DEVICE Range part(std::size_t total, std::size_t each, int index) {
  const std::size_t begin = each * static_cast<std::size_t>(index);
  if (begin >= total) return {total, total};
  return {begin, total - begin < each ? total : begin + each};
}
TUTTI_DEVICE Range part(Range whole, std::size_t each, int index) {
  const Range r = part(whole.bytes(), each, index);
  return {whole.begin + r.begin, whole.begin + r.end};
}
// Size of each part when `total` is cut into `parts` of whole multiples of 16: on the host, divisions are slow.
inline std::size_t part_size(std::size_t total, int parts) {
  constexpr std::size_t unit = 16;
  const auto n = static_cast<std::size_t>(parts);
  return (total + unit * n - 1) / (unit * n) * unit;
}

}  // namespace tutti::cuda
