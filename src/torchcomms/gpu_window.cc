#include "torchcomms/gpu_window.h"

#include <ATen/Functions.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "aten/cuda_streams.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "base/release.h"
#include "torchcomms/stream_event.h"
#include "torchcomms/work.h"

namespace tutti::torchcomms {
namespace {

at::Tensor whole_storage(const at::Tensor& tensor) {
  const c10::InferenceMode off(false);
  return at::empty({0}, tensor.options().dtype(at::kByte))
      .set_(tensor.storage(), 0, {static_cast<std::int64_t>(tensor.storage().nbytes())});
}

}  // namespace

std::unique_ptr<GpuWindow> GpuWindow::make(std::shared_ptr<WindowGroup> group, const at::Tensor& tensor, int rank,
                                           const std::vector<Place>& places) {
  const c10::DeviceGuard on_device(tensor.device());
  at::Tensor storage = whole_storage(tensor);
  std::vector<at::Tensor> bytes = registered_by_all(group->in_use(), storage);
  if (bytes.empty()) return nullptr;
  for (std::size_t peer = 0; peer < bytes.size(); ++peer) {
    bytes[peer] = bytes[peer].narrow(0, places[peer].first, places[peer].bytes);
  }
  std::unique_ptr<GpuWindow> made(new GpuWindow(std::move(group), std::move(storage), rank, std::move(bytes)));
  made->meet();
  return made;
}

// All at once, so that each finds its peer's.
void GpuWindow::meet() {
  std::vector<CallPtr> calls;
  for (int peer = 0; peer < static_cast<int>(bytes_.size()); ++peer) {
    if (peer == rank_) continue;
    calls.push_back(signal(peer));
    calls.push_back(wait_signal(peer));
  }
  for (const CallPtr& call : calls) call->wait();
}

GpuWindow::GpuWindow(std::shared_ptr<WindowGroup> group, at::Tensor storage, int rank, std::vector<at::Tensor> bytes)
    : group_(std::move(group)),
      storage_(std::move(storage)),
      rank_(rank),
      bytes_(std::move(bytes)),
      token_(at::empty({0}, storage_.options())),
      last_(2 * bytes_.size()),
      sent_(bytes_.size()),
      awaited_(bytes_.size()) {}

GpuWindow::~GpuWindow() { left_by_child(storage_); }

void GpuWindow::written(const c10::Stream& stream) {
  auto event = std::make_unique<face::CudaEvent>(events_, stream);
  const auto found = std::find_if(writes_.begin(), writes_.end(), [&](const auto& one) { return one.first == stream; });
  if (found != writes_.end()) {
    found->second = std::move(event);
  } else {
    writes_.emplace_back(stream, std::move(event));
  }
}

GpuWindow::CallPtr GpuWindow::put(const at::Tensor& data, int peer, std::int64_t first) {
  const c10::InferenceMode off(false);
  const at::Tensor& target = bytes(peer);
  const c10::DeviceGuard on_device(target.device());
  const at::Tensor source = data.detach();
  const auto size = static_cast<std::int64_t>(source.nbytes());
  // The peer's memory, as if it were this GPU's.
  at::Tensor into = target.narrow(0, first, size).view(source.scalar_type()).view(source.sizes());
  into.copy_(source);
  const c10::Stream stream = face::current_cuda_stream(target.device());
  // What is captured is written when the graph is replayed, which is its owner's to end.
  if (!capturing(target.device())) written(stream);
  return c10::make_intrusive<StreamEvent>(events_, stream, source);
}

GpuWindow::CallPtr GpuWindow::message(bool send, int peer) {
  const Group group = group_->in_use();
  std::vector<at::Tensor> tensors{token_};
  const bool captured = capturing(token_.device());
  CallPtr call = send ? group->send(tensors, peer, 0) : group->recv(tensors, peer, 0);
  const auto place = static_cast<std::size_t>(peer);
  ++(send ? sent_ : awaited_)[place];
  if (captured) {
    captured_ = true;
  } else {
    last_[2 * place + (send ? 1 : 0)] = call;
  }
  return call;
}

GpuWindow::CallPtr GpuWindow::signal(int peer) {
  const c10::DeviceGuard on_device(token_.device());
  if (peer != rank_) return message(/*send=*/true, peer);
  const c10::Stream stream = face::current_cuda_stream(token_.device());
  // Those of captures that have ended nobody can hear any more. Of a stream that may be gone nothing is asked.
  own_.remove_if([](const Own& own) {
    return own.capture != 0 && face::lasts(own.stream) && capture_of(own.stream) != own.capture;
  });
  own_.emplace_back(events_, stream, capture_of(stream));
  return c10::make_intrusive<StreamEvent>(events_, stream, token_);
}

GpuWindow::CallPtr GpuWindow::wait_signal(int peer) {
  const c10::DeviceGuard on_device(token_.device());
  if (peer != rank_) return message(/*send=*/false, peer);
  // CUDA lets no capture wait for what is outside of it, nor the other way round.
  const c10::Stream stream = face::current_cuda_stream(token_.device());
  const auto found = std::ranges::find(own_, capture_of(stream), &Own::capture);
  if (found == own_.end()) return nullptr;
  found->event.block(stream);
  own_.erase(found);
  return c10::make_intrusive<StreamEvent>(events_, stream, token_);
}

void GpuWindow::settle(std::chrono::milliseconds limit) {
  const c10::DeviceGuard on_device(token_.device());
  Deadline deadline = Deadline::after(limit);
  const auto wait_until = [&](const auto& over) {
    if (face::over_in_time(over, deadline, "tensor_deregister")) return;
    face::throw_backend_error("tutti: tensor_deregister on communicator '" + group_->name() +
                              "': what this rank has put and signalled has not ended within " +
                              std::to_string(limit.count()) + " ms");
  };
  face::interruptible([&] {
    for (const auto& [stream, event] : writes_) wait_until([&event = *event] { return event.query(); });
    for (const CallPtr& call : last_) {
      if (call != nullptr) wait_until([&call] { return call->isCompleted(); });
    }
  });
  writes_.clear();
}

bool GpuWindow::end(c10d::Backend& host, std::chrono::milliseconds timeout) {
  const c10::DeviceGuard on_device(token_.device());
  const Group group = group_->in_use();
  bytes_.clear();
  unregistered_by_all(group, storage_);
  // Of each rank: whether it has failed or captured signals, those it has sent, those it has waited for.
  const auto size = static_cast<std::int64_t>(sent_.size()), words = 1 + 2 * size;
  std::vector<std::int64_t> mine{captured_ || group->getError() != c10d::ErrorType::SUCCESS ? 1 : 0};
  mine.insert(mine.end(), sent_.begin(), sent_.end());
  mine.insert(mine.end(), awaited_.begin(), awaited_.end());
  const std::vector<std::int64_t> said = gathered_words(host, mine, timeout);
  const auto word = [&](std::int64_t rank, std::int64_t place) {
    return said[static_cast<std::size_t>(rank * words + place)];
  };
  for (std::int64_t from = 0; from < size; ++from) {
    if (word(from, 0) != 0) return false;
    for (std::int64_t to = 0; to < size; ++to) {
      if (word(from, 1 + to) != word(to, 1 + size + from)) return false;
    }
  }
  return true;
}

}  // namespace tutti::torchcomms
