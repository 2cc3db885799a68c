// Send, receive and the coalescing of what is issued between startCoalescing and endCoalescing.
//
// Point-to-point calls progress on their own, so coalescing only collects the works of this thread: the order in which
// a batch lists its sends and receives cannot deadlock.
#include "base/registry.h"
#include "torch/cuda_batch.h"
#include "torch/issue.h"

namespace tutti::face {
namespace {

at::Tensor& only(std::vector<at::Tensor>& tensors, const char* call) {
  if (tensors.size() != 1) {
    refuse(std::string(call) + " takes one tensor, got " + std::to_string(tensors.size()));
  }
  require_dense(tensors.front(), call);
  return tensors.front();
}

// Before a lock that a thread of the parent may have held at the fork.
void refuse_in_child(const Communicator& communicator) {
  if (forked_child()) [[unlikely]]
    throw_as_torch(*communicator.failure());
}

}  // namespace

C10dWorkPtr ProcessGroupTutti::transfer(const Event& event, at::Tensor& tensor, int peer, int tag, bool receive) {
  if (tag < 0) refuse("send and recv take tags from 0 on, got " + std::to_string(tag));
  if (peer != kAnySource && (peer < 0 || peer >= size_)) {
    refuse("peer " + std::to_string(peer) + " is not in [0, " + std::to_string(size_) + ")");
  }
  if (tensor.is_cuda()) return transfer_on_cuda(event, tensor, peer, tag, receive);
  const auto prepared = std::make_shared<Prepared>(/*keep=*/true);
  prepared->describe(Collective::kBarrier, tensor);
  void* memory = receive ? prepared->output(tensor) : prepared->input(tensor);
  auto work = c10::make_intrusive<AsyncWork>(rank_, event.op, tensor, communicator_, options_->overlap_futures);
  const bool profiled = profiling();
  if (profiled) work->profile(event.title, tensor);
  const Call& call = prepared->call;
  WorkPtr queued = translated([&] {
    return receive ? communicator_->irecv(memory, call.count, call.dtype, peer, static_cast<std::uint64_t>(tag), {},
                                          prepared)
                   : communicator_->isend(memory, call.count, call.dtype, peer, static_cast<std::uint64_t>(tag), {},
                                          prepared);
  });
  if (profiled || prepared->has_write_backs()) {
    AsyncWork::attach_staged(work, queued, [prepared] { prepared->write_back(); });
  } else {
    work->attach(std::move(queued));
  }
  captured(work);
  return work;
}

C10dWorkPtr ProcessGroupTutti::send(Tensors& tensors, int destination, int tag) {
  return transfer({"tutti:send", c10d::OpType::SEND}, only(tensors, "send"), destination, tag, /*receive=*/false);
}

C10dWorkPtr ProcessGroupTutti::recv(Tensors& tensors, int source, int tag) {
  if (source == kAnySource) refuse("recv: source -1; recv_anysource takes any");
  return transfer({"tutti:recv", c10d::OpType::RECV}, only(tensors, "recv"), source, tag, /*receive=*/true);
}

C10dWorkPtr ProcessGroupTutti::recvAnysource(Tensors& tensors, int tag) {
  return transfer({"tutti:recvAnySource", c10d::OpType::RECVANYSOURCE}, only(tensors, "recv"), kAnySource, tag,
                  /*receive=*/true);
}

void ProcessGroupTutti::startCoalescing() {
  refuse_in_child(*communicator_);
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!coalescing_.try_emplace(std::this_thread::get_id()).second) {
    refuse("coalescing has already been started on this thread");
  }
  coalescing_threads_.fetch_add(1, std::memory_order_relaxed);
}

C10dWorkPtr ProcessGroupTutti::endCoalescing() {
  refuse_in_child(*communicator_);
  Coalesced issued;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = coalescing_.find(std::this_thread::get_id());
    if (found == coalescing_.end()) refuse("coalescing ends on a thread that has not started it");
    issued = std::move(found->second);
    coalescing_.erase(found);
  }
  coalescing_threads_.fetch_sub(1, std::memory_order_relaxed);
  if (issued.messages != nullptr) {
    auto work = end_cuda_batch(*issued.messages);
    if (issued.works.empty()) return work;
    issued.works.push_back(std::move(work));
  }
  return c10::make_intrusive<GroupWork>(rank_, std::move(issued.works));
}

void ProcessGroupTutti::captured(const C10dWorkPtr& work) {
  if (coalescing_threads_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = coalescing_.find(std::this_thread::get_id());
  if (found != coalescing_.end()) found->second.works.push_back(work);
}

CudaBatch* ProcessGroupTutti::open_cuda_batch(c10::Device device) {
  if (coalescing_threads_.load(std::memory_order_relaxed) == 0) return nullptr;
  refuse_in_child(*communicator_);
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = coalescing_.find(std::this_thread::get_id());
  if (found == coalescing_.end()) return nullptr;
  auto& messages = found->second.messages;
  if (messages == nullptr) messages = std::make_shared<CudaBatch>(device);
  if (messages->device != device) refuse("a batch of messages has tensors of one device");
  return messages.get();
}

}  // namespace tutti::face
