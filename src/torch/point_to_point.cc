// Send, receive and the coalescing of what is issued between startCoalescing and endCoalescing.
//
// Point-to-point calls progress on their own: the order in which a batch lists its sends and receives cannot deadlock.
//
// The messages of a batch are sent when it ends, all or none, and what is wrong with one is said then. PyTorch's
// context of a batch does not end on an exception: it would go on collecting, and the group's next collectives with it,
// which would return without having run.
#include "aten/cuda_batch.h"
#include "base/registry.h"
#include "torch/issue.h"

namespace tutti::face {
namespace {

// Before a lock that a thread of the parent may have held at the fork.
void refuse_in_child(const Communicator& communicator) {
  if (forked_child()) [[unlikely]]
    throw_as_torch(*communicator.failure());
}

}  // namespace

ProcessGroupTutti::Message ProcessGroupTutti::describe_message(const Event& event, const at::Tensor& tensor, int peer,
                                                               int tag, bool receive) {
  auto prepared = std::make_shared<Prepared>(/*keep=*/true);
  prepared->describe(Collective::kBarrier, tensor);
  void* memory = receive ? prepared->output(tensor) : prepared->input(tensor);
  auto work = c10::make_intrusive<AsyncWork>(rank_, event.op, tensor, communicator_, options_->overlap_futures);
  return {std::move(work), std::move(prepared), memory, peer, tag, receive};
}

void ProcessGroupTutti::post(const Message& message) {
  const auto& prepared = message.prepared;
  const Call& call = prepared->call;
  const auto tag = static_cast<std::uint64_t>(message.tag);
  WorkPtr queued = translated([&] {
    return message.receive
               ? communicator_->irecv(message.memory, call.count, call.dtype, message.peer, tag, {}, prepared)
               : communicator_->isend(message.memory, call.count, call.dtype, message.peer, tag, {}, prepared);
  });
  if (prepared->has_write_backs()) {
    AsyncWork::attach_staged(message.work, queued, [prepared] { prepared->write_back(); });
  } else {
    message.work->attach(std::move(queued));
  }
}

C10dWorkPtr ProcessGroupTutti::transfer(const Event& event, Tensors& tensors, int peer, int tag, bool receive) {
  Coalesced* const batch = open_batch();
  const auto issue = [&]() -> C10dWorkPtr {
    const at::Tensor& tensor = only_dense(tensors, receive ? "recv" : "send");
    if (tag < 0) refuse("send and recv take tags from 0 on, got " + std::to_string(tag));
    if (peer == kAnySource && event.op == c10d::OpType::RECV) refuse("recv: source -1; recv_anysource takes any");
    if (peer != kAnySource && (peer < 0 || peer >= size_)) {
      refuse("peer " + std::to_string(peer) + " is not in [0, " + std::to_string(size_) + ")");
    }
    if (tensor.is_cuda()) return transfer_on_cuda(event, tensor, peer, tag, receive);
    const CallEvent reported(event, tensor);
    Message message = describe_message(event, tensor, peer, tag, receive);
    const C10dWorkPtr work = message.work;
    if (batch == nullptr) {
      post(message);
    } else {
      batch->works.push_back(work);
      batch->messages.push_back(std::move(message));
    }
    return work;
  };
  if (batch == nullptr && !in_childs_batch()) return issue();
  try {
    if (batch != nullptr && batch->refused == nullptr) return issue();
  } catch (...) {
    batch->refused = std::current_exception();
  }
  return c10::make_intrusive<CompletedWork>(rank_, event.op, tensors);
}

C10dWorkPtr ProcessGroupTutti::send(Tensors& tensors, int destination, int tag) {
  return transfer({"tutti:send", c10d::OpType::SEND}, tensors, destination, tag, /*receive=*/false);
}

C10dWorkPtr ProcessGroupTutti::recv(Tensors& tensors, int source, int tag) {
  return transfer({"tutti:recv", c10d::OpType::RECV}, tensors, source, tag, /*receive=*/true);
}

C10dWorkPtr ProcessGroupTutti::recvAnysource(Tensors& tensors, int tag) {
  return transfer({"tutti:recvAnySource", c10d::OpType::RECVANYSOURCE}, tensors, kAnySource, tag, /*receive=*/true);
}

void ProcessGroupTutti::startCoalescing() {
  if (forked_child()) [[unlikely]] {
    childs_batch_.store(std::this_thread::get_id(), std::memory_order_relaxed);  // relaxed: only its thread compares
    return;
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  // One that is there already was left open by an exception of its thread's own.
  if (!coalescing_.insert_or_assign(std::this_thread::get_id(), Coalesced()).second) return;
  coalescing_threads_.fetch_add(1, std::memory_order_relaxed);
}

C10dWorkPtr ProcessGroupTutti::endCoalescing() {
  if (in_childs_batch()) childs_batch_.store({}, std::memory_order_relaxed);
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
  if (issued.refused != nullptr) std::rethrow_exception(issued.refused);
  for (const Message& message : issued.messages) post(message);
  if (issued.cuda_messages != nullptr) {
    auto work = end_cuda_batch(*issued.cuda_messages);
    if (issued.works.empty()) return work;
    issued.works.push_back(std::move(work));
  }
  return c10::make_intrusive<GroupWork>(rank_, std::move(issued.works));
}

bool ProcessGroupTutti::in_childs_batch() const {
  return forked_child() && childs_batch_.load(std::memory_order_relaxed) == std::this_thread::get_id();
}

ProcessGroupTutti::Coalesced* ProcessGroupTutti::open_batch() {
  // Before a lock that a thread of the parent may have held at the fork.
  if (coalescing_threads_.load(std::memory_order_relaxed) == 0 || forked_child()) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = coalescing_.find(std::this_thread::get_id());
  return found != coalescing_.end() ? &found->second : nullptr;
}

void ProcessGroupTutti::captured(const C10dWorkPtr& work) {
  if (Coalesced* const batch = open_batch()) batch->works.push_back(work);
}

CudaBatch* ProcessGroupTutti::open_cuda_batch(c10::Device device) {
  Coalesced* const batch = open_batch();
  if (batch == nullptr) return nullptr;
  auto& messages = batch->cuda_messages;
  if (messages == nullptr) messages = std::make_shared<CudaBatch>(device);
  if (messages->device != device) refuse("a batch of messages has tensors of one device");
  return messages.get();
}

}  // namespace tutti::face
