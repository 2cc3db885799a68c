#include "aten/group_buffers.h"

#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "communicator/gather_all.h"

namespace tutti::face {
namespace {

// Smaller calls run with copies anyway (include/tutti/cuda/communicator.h).
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;

// A tensor of its own over the memory: not a view, and with a version of its own.
at::Tensor over(const at::Tensor& memory, std::int64_t count, const at::TensorOptions& options) {
  const at::AutoDispatchBelowADInplaceOrView no_autograd;
  return at::empty({0}, options).set_(memory.storage(), /*storage_offset=*/0, {count}, {1});
}

}  // namespace

at::Tensor GroupBuffers::add(std::int64_t count, const at::TensorOptions& options, const c10::Stream& stream,
                             Source source) {
  const std::int64_t bytes = count * static_cast<std::int64_t>(options.dtype().itemsize());
  at::Tensor memory = source(bytes, stream.device());
  // A rank without memory must not leave the others waiting for its registration.
  const BufferOffer made{static_cast<std::uint64_t>(bytes), memory.defined() ? 1u : 0u, {}};
  if (choose_buffer(gather_all(communicator_, made), 0).source == BufferSource::kOrdinary) {
    memory.reset();
    return at::empty({count}, options);  // says what is missing, on the rank where it is
  }
  shares_ = cuda_.register_storages({memory.storage()}).empty();
  if (shares_) buffers_.push_back({memory, memory.storage().use_count(), stream});
  return over(memory, count, options);
}

at::Tensor GroupBuffers::allocate(std::int64_t count, const at::TensorOptions& options, Source source) {
  const std::size_t bytes = static_cast<std::size_t>(count) * options.dtype().itemsize();
  if (bytes < kLeastBytes || communicator_.size() == 1) return at::empty({count}, options);
  const c10::OptionalDeviceGuard on_device(options.device());
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Device device = cuda.getDevice();
  const CudaLane& lane = cuda_.group(device);
  const c10::Stream stream = cuda.getStream(device);

  const std::lock_guard<std::mutex> lock(mutex_);
  if (!shares_) return at::empty({count}, options);
  BufferOffer mine;
  mine.bytes = bytes;
  // The memory of a graph belongs to the graph: it is used again at each replay.
  mine.shares = !lane.communicator->is_capturing(stream.native_handle()) ? 1 : 0;
  std::vector<const Buffer*> same;
  for (const Buffer& buffer : buffers_) {
    if (buffer.memory.nbytes() != bytes) continue;
    if (buffer.stream == stream && buffer.memory.storage().use_count() == buffer.users) mine.set_free(same.size());
    same.push_back(&buffer);
  }
  const BufferChoice choice = choose_buffer(gather_all(communicator_, mine), same.size());
  switch (choice.source) {
    case BufferSource::kOrdinary:
      break;
    case BufferSource::kNew:
      return add(count, options, stream, source);
    case BufferSource::kReused:
      cuda_.order_after_calls(stream);
      return over(same[choice.index]->memory, count, options);
  }
  return at::empty({count}, options);
}

}  // namespace tutti::face
