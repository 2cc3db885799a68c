// Collectives on memory that all ranks map, carried out by copy engines: which copies a rank issues.
//
// The kernels around them: all ranks meet (meet.cuh), so that every input is complete and every output may be
// overwritten; then the copies, to one peer after another; then all ranks meet again, so that everything has come.
//   all_gather      push this rank's block to every output        (n - 1) blocks out, (n - 1) in
//   all_to_all      push block p of the input to rank p           the same
//   broadcast       the root pushes to every output               (n - 1) S out of the root
//   scatter         the root pushes block p of its input to rank p
//   gather          the root pulls every input, because only the root has an output
//   all_reduce      its second half: push this rank's reduced chunk to every output; the first half is the
//                   reduce-scatter of direct.cuh into this rank's output, whose two meetings stand for the first one
#pragma once

#include <cstddef>
#include <vector>

#include "algorithm/cuda/direct.cuh"
#include "tutti/call.h"

namespace tutti::cuda {

struct PeerCopy {
  int peer = 0;  // whose link it takes; this rank: a copy at home
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  std::size_t bytes = 0;
};

// Whether copy engines can run the call: equal blocks of one buffer each; an all-reduce whose bytes divide into whole
// vectors of 16 bytes a rank. The same on all ranks that make the same call.
bool copy_engines_can(const Call& call, int size) noexcept;

// At most one copy a peer. inputs[p] and outputs[p] are rank p's buffers of the call, as mapped here; of what the
// copies above do not touch they may be anything.
std::vector<PeerCopy> peer_copies(const Call& call, int rank, int size, std::byte* const* inputs,
                                  std::byte* const* outputs);

// The first half of an all-reduce, for the kernel of a direct reduce-scatter.
DirectArgs make_reduce_half(const Call& call, int rank, int size, int blocks, std::byte* const* inputs,
                            std::byte* const* outputs, std::uint32_t fingerprint);

}  // namespace tutti::cuda
