#include "device/cuda/cuda_arithmetic.h"
#include "device/cuda/reduce_any.h"

namespace tutti::cuda {
namespace {

struct Operands {
  std::byte* dst[kMostDestinations];
  const std::byte* src[kMostSources];
  int n_dsts, n_srcs;
  std::size_t bytes;
  ReduceSpec spec;
};

__global__ void reduce_kernel(const __grid_constant__ Operands o) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * blockDim.x * 16;
  for (std::size_t at = (static_cast<std::size_t>(blockIdx.x) * blockDim.x + threadIdx.x) * 16; at < o.bytes;
       at += stride) {
    device::Vec16 v[kMostSources];
    for (int s = 0; s < o.n_srcs; ++s) v[s] = device::load_user(o.src[s] + at, o.bytes - at);
    device::Vec16 out{{0, 0, 0, 0}};
    with_codec(o.spec.dtype, ReduceBody{v, o.n_srcs, o.spec, out});
    for (int d = 0; d < o.n_dsts; ++d) device::store_user(o.dst[d] + at, out, o.bytes - at);
  }
}

}  // namespace

void launch_reduce(void* const* dsts, int n_dsts, const void* const* srcs, int n_srcs, std::size_t count,
                   DataType dtype, ReduceOp op, int divisor) noexcept {
  Operands o{};
  o.n_dsts = n_dsts < kMostDestinations ? n_dsts : kMostDestinations;
  o.n_srcs = n_srcs < kMostSources ? n_srcs : kMostSources;
  for (int d = 0; d < o.n_dsts; ++d) o.dst[d] = static_cast<std::byte*>(dsts[d]);
  for (int s = 0; s < o.n_srcs; ++s) o.src[s] = static_cast<const std::byte*>(srcs[s]);
  o.bytes = count * size_of(dtype);
  o.spec = {dtype, op, divisor, 1.0};
  if (o.bytes == 0) return;
  const std::size_t blocks = (o.bytes + 256 * 16 - 1) / (256 * 16);
  reduce_kernel<<<static_cast<unsigned>(blocks < 1024 ? blocks : 1024), 256>>>(o);
}

}  // namespace tutti::cuda
