#include "torchcomms/window.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <utility>

#include "aten/cuda_streams.h"
#include "aten/errors.h"
#include "aten/signals.h"
#include "aten/tensors.h"
#include "base/registry.h"
#include "interpreter/without_python.h"
#include "torchcomms/work.h"
#include "tutti/cuda/capture.h"

namespace tutti::torchcomms {
namespace {

// The memory of a contiguous tensor as bytes, in a tensor of its own, which keeps it alive: neither autograd nor
// inference mode is told of what peers write.
at::Tensor bytes_of(const at::Tensor& tensor) {
  const c10::InferenceMode off(false);
  return at::for_blob(tensor.data_ptr(), {static_cast<std::int64_t>(tensor.nbytes())})
      .options(at::TensorOptions().dtype(at::kByte).device(tensor.device()))
      .target_device(tensor.device())
      .deleter([tensor](void*) {})
      .make_tensor();
}

}  // namespace

template <class Call>
void Window::collectively(const Call& call) {
  try {
    without_python(call);
  } catch (...) {
    link_->look_for_failure();
    throw;
  }
}

void Window::require_dense(const TorchCommTutti& owner, const char* operation, const at::Tensor& tensor) {
  try {
    face::require_dense(tensor, operation);
  } catch (const c10::ValueError& wrong) {
    owner.refuse(operation, wrong.what_without_backtrace());
  }
}

Window::Window(std::shared_ptr<Link> link) : link_(std::move(link)) {}

void Window::await_stream(const TorchCommTutti& owner, const char* operation, c10::Device device,
                          Inbox::Milliseconds limit, const std::string& what) const {
  if (!device.is_cuda()) return;
  if (capturing(device)) {
    owner.refuse(operation, "window " + std::to_string(number_) +
                                " goes by way of the host, as GPUs do not reach each other: it cannot be captured");
  }
  without_python([&] {
    const face::CudaEvent held(events_, face::current_cuda_stream(device));
    face::interruptible([&] {
      Deadline deadline = Deadline::after(limit);
      if (face::over_in_time([&held] { return held.query(); }, deadline, operation)) return;
      face::throw_backend_error("tutti: " + std::string(operation) + " on communicator '" + owner.name_ + "': window " +
                                std::to_string(number_) + ", " + what + ": what the current stream of " + device.str() +
                                " holds has not ended within " + std::to_string(limit.count()) + " ms");
    });
  });
}

TorchCommTutti& Window::communicator(const char* operation) const {
  if (forked_child()) {  // before any lock, of the communicator's or an inbox's: a thread of the parent may have had it
    face::throw_backend_error("tutti: " + std::string(operation) +
                              " of a window that belongs to the parent: Tutti is disabled in a forked child");
  }
  TorchCommTutti* const owner = link_->owner();
  TORCH_CHECK(owner != nullptr, "tutti: ", operation, " of a window whose communicator is gone");
  owner->ready(operation);
  return *owner;
}

Inbox& Window::inbox(const char* operation, int peer) const {
  TorchCommTutti& owner = communicator(operation);
  owner.checked_rank(peer, operation, "peer");
  if (inbox_ == nullptr) owner.refuse(operation, "the window has no tensor: call tensor_register() on every rank");
  if (inbox_->group_ended()) {
    owner.refuse(operation, "the group that the window's tensor was registered with has ended: register it again");
  }
  return *inbox_;
}

void Window::tensor_register(const at::Tensor& tensor, bool owning) {
  constexpr const char* kOperation = "tensor_register";
  TorchCommTutti& owner = communicator(kOperation);
  if (inbox_ != nullptr) owner.refuse(kOperation, "the window has a tensor already: deregister that first");
  if (!tensor.defined() || !(tensor.is_cpu() || tensor.is_cuda()) || tensor.is_sparse()) {
    owner.refuse(kOperation, "a window takes a dense CPU or CUDA tensor");
  }
  require_dense(owner, kOperation, tensor);
  if (!face::usable_in_place(tensor)) {
    owner.refuse(kOperation,
                 "a window's tensor must be contiguous, and no conjugate or negative view: pass a contiguous one");
  }
  collectively([&] {
    const auto [windows, number] = owner.next_window();
    number_ = number;
    // The memory of a tensor that is the caller's is held, too: peers may be late, and the caller may drop it.
    auto loan = std::make_unique<face::Loan>(bytes_of(tensor));
    const auto places = exchange(owner, *windows->in_use(), tensor, *loan, number);
    // Two tags each; tags are not negative.
    const int tag = static_cast<int>(2 * (number % (1 << 30)));
    const auto inbox =
        std::make_shared<Inbox>(windows, owner.rank_, owner.size_, bytes_of(tensor), std::move(loan), tag);
    std::shared_ptr<WindowGroup> of_gpus;
    std::unique_ptr<GpuWindow> gpu;
    try {
      if (places.has_value()) {
        of_gpus = owner.gpu_window_group();
        gpu = GpuWindow::make(of_gpus, tensor, owner.rank_, *places);
        if (gpu == nullptr) owner.give_back(std::exchange(of_gpus, nullptr), /*again=*/true);
      }
      // Before others hear that they may write.
      if (gpu == nullptr) {
        await_stream(owner, kOperation, tensor.device(), owner.options_.timeout, "which peers are to write");
      }
      windows->add(inbox);
      inbox->open(/*by_host=*/gpu == nullptr);
    } catch (...) {  // the window has no tensor, and the others do not wait for it
      if (of_gpus != nullptr) owner.give_back(std::move(of_gpus), /*again=*/false);
      throw;
    }
    inbox_ = inbox;
    gpu_ = std::move(gpu);
  });
  win_size_ = tensor.nbytes();
  buf_tensor_ = owning ? std::optional<at::Tensor>(tensor) : std::nullopt;
  buf_dtype_ = tensor.scalar_type();
  buf_device_ = tensor.device();
  buf_shape_ = tensor.sizes().vec();
}

std::optional<std::vector<GpuWindow::Place>> Window::exchange(const TorchCommTutti& owner, c10d::Backend& group,
                                                              const at::Tensor& tensor, const face::Loan& loan,
                                                              std::int64_t number) {
  const auto storage_bytes = static_cast<std::int64_t>(tensor.is_cuda() ? tensor.storage().nbytes() : 0);
  const std::vector<std::int64_t> mine{number,
                                       static_cast<std::int64_t>(tensor.scalar_type()),
                                       tensor.numel(),
                                       static_cast<std::int64_t>(loan.arena()),
                                       static_cast<std::int64_t>(loan.offset()),
                                       storage_bytes,
                                       tensor.storage_offset() * static_cast<std::int64_t>(tensor.element_size())};
  const std::vector<std::int64_t> all = gathered_words(group, mine, owner.options_.timeout);
  const std::int64_t* theirs = all.data();
  peers_.clear();
  std::vector<GpuWindow::Place> places;
  bool on_gpus = storage_bytes > 0 && group.getSize() > 1;
  for (int rank = 0; rank < group.getSize(); ++rank, theirs += mine.size()) {
    const std::string who = "rank " + std::to_string(rank);
    if (theirs[0] != mine[0]) {
      owner.refuse("tensor_register", who + " registers another window: all ranks register theirs in the same order");
    }
    if (theirs[1] != mine[1]) owner.refuse("tensor_register", who + " registers a tensor of another dtype");
    Peer peer{theirs[2], {}};
    if (theirs[3] != 0 && rank != owner.rank_) {
      peer.mapped = face::peer_bytes(static_cast<std::uint64_t>(theirs[3]), static_cast<std::uint64_t>(theirs[4]),
                                     static_cast<std::uint64_t>(theirs[2]) * tensor.element_size());
    }
    peers_.push_back(std::move(peer));
    on_gpus = on_gpus && theirs[5] == storage_bytes;
    places.push_back({theirs[6], theirs[2] * static_cast<std::int64_t>(tensor.element_size())});
  }
  return on_gpus ? std::optional(std::move(places)) : std::nullopt;
}

void Window::tensor_deregister() {
  constexpr const char* kOperation = "tensor_deregister";
  TorchCommTutti& owner = communicator(kOperation);
  if (inbox_ == nullptr) owner.refuse(kOperation, "the window has no tensor, or it was deregistered");
  // Interrupted or late, it leaves the window as it was.
  if (gpu_ != nullptr) collectively([&] { gpu_->settle(owner.options_.timeout); });
  const std::shared_ptr<Inbox> inbox = std::exchange(inbox_, nullptr);
  buf_tensor_.reset();
  win_size_ = 0;
  const std::unique_ptr<GpuWindow> gpu = std::exchange(gpu_, nullptr);
  peers_.clear();
  collectively([&] {
    try {
      inbox->close(owner.options_.timeout);
      if (gpu == nullptr || inbox->group_ended()) return;
      link_->look_for_failure();  // of the group that may go now
      owner.give_back(gpu->group(), /*again=*/gpu->end(*inbox->group(), owner.options_.timeout));
    } catch (...) {  // also where a peer is late: it must not wait for this rank later
      if (gpu != nullptr && !inbox->group_ended()) owner.give_back(gpu->group(), /*again=*/false);
      throw;
    }
  });
}

std::shared_ptr<comms::TorchCommWindow> Window::clone() {
  static_cast<void>(communicator("clone"));
  auto window = std::make_shared<Window>(link_);
  if (buf_tensor_.has_value()) window->tensor_register(buf_tensor_->clone(), /*owning=*/true);
  return window;
}

WorkPtr Window::put(const at::Tensor& tensor, int peer, std::size_t first, bool async,
                    const comms::PutOptions& options) {
  constexpr const char* kOperation = "put";
  Inbox& to = inbox(kOperation, peer);
  TorchCommTutti& owner = communicator(kOperation);
  if (!tensor.defined() || tensor.scalar_type() != buf_dtype_) {
    owner.refuse(kOperation, std::string("the tensor's dtype must be the window's, ") + c10::toString(buf_dtype_));
  }
  const auto room = static_cast<std::uint64_t>(peers_[static_cast<std::size_t>(peer)].elements);
  const auto count = static_cast<std::uint64_t>(tensor.numel());
  if (first > room || count > room - first) {
    owner.refuse(kOperation, std::to_string(count) + " elements at " + std::to_string(first) +
                                 " end behind the window of rank " + std::to_string(peer) + ", which has " +
                                 std::to_string(room));
  }
  const auto limit = limit_of(options.timeout);
  return run(kOperation, async, TorchCommTutti::given(options), [&]() -> Inbox::CallPtr {
    const auto at = static_cast<std::int64_t>(first * tensor.element_size());
    require_dense(owner, kOperation, tensor);  // before the peer is told of it
    to.require_there(peer);
    if (gpu_ != nullptr) return gpu_->put(tensor, peer, at);
    // From a GPU data goes by way of the host.
    await_stream(owner, kOperation, tensor.device(), limit, "to rank " + std::to_string(peer));
    at::Tensor here = tensor.detach();
    if (here.is_cuda()) cuda_beside_captures([&here] { here = here.cpu(); });
    if (!face::usable_in_place(here)) {
      here = at::empty_like(here, here.options(), at::MemoryFormat::Contiguous).copy_(here);
    }
    const at::Tensor data = bytes_of(here);
    const at::Tensor& mapped = reached(peer);
    if (!mapped.defined()) return to.put(peer, at, data);
    mapped.narrow(0, at, data.numel()).copy_(data);
    return Event::ended();
  });
}

WorkPtr Window::signal(int peer, bool async, const comms::SignalOptions& options) {
  constexpr const char* kOperation = "signal";
  Inbox& to = inbox(kOperation, peer);
  const auto limit = limit_of(options.timeout);
  return run(kOperation, async, TorchCommTutti::given(options), [&] {
    to.require_there(peer);
    if (gpu_ != nullptr) return gpu_->signal(peer);
    await_stream(communicator(kOperation), kOperation, buf_device_, limit, "to rank " + std::to_string(peer));
    return to.signal(peer);
  });
}

WorkPtr Window::wait_signal(int peer, bool async, const comms::WaitSignalOptions& options) {
  constexpr const char* kOperation = "wait_signal";
  Inbox& from = inbox(kOperation, peer);
  const auto limit = limit_of(options.timeout);
  return run(kOperation, async, TorchCommTutti::given(options), [&] {
    if (gpu_ == nullptr) return from.next_signal(peer, limit);
    const Inbox::CallPtr call = gpu_->wait_signal(peer);
    if (call == nullptr) communicator(kOperation).refuse(kOperation, "this rank has not signalled to itself");
    return call;
  });
}

at::Tensor Window::map_remote_tensor(int rank) {
  constexpr const char* kOperation = "map_remote_tensor";
  inbox(kOperation, rank);
  const TorchCommTutti& owner = communicator(kOperation);
  if (rank == owner.rank_ && buf_tensor_.has_value()) return *buf_tensor_;
  const Peer& peer = peers_[static_cast<std::size_t>(rank)];
  const at::Tensor bytes = reached(rank);
  if (!bytes.defined()) {
    owner.refuse(kOperation, "rank " + std::to_string(rank) +
                                 "'s tensor is not in memory that this rank maps: it must be a CPU tensor made by "
                                 "tutti.empty on the same host, or, as all ranks', of a GPU that this one reaches");
  }
  const bool alike =
      std::accumulate(buf_shape_.begin(), buf_shape_.end(), std::int64_t{1}, std::multiplies<>()) == peer.elements;
  return at::for_blob(bytes.data_ptr(), alike ? at::IntArrayRef(buf_shape_) : at::IntArrayRef(peer.elements))
      .options(at::TensorOptions().dtype(buf_dtype_).device(bytes.device()))
      .target_device(bytes.device())
      .deleter([bytes](void*) {})
      .make_tensor();
}

std::shared_ptr<comms::TorchCommWindowAttr> Window::get_attr(int rank) {
  inbox("get_attr", rank);
  auto attributes = std::make_shared<comms::TorchCommWindowAttr>();
  attributes->accessType = reached(rank).defined() ? comms::TorchCommWinAccessType::WIN_ACCESS_TYPE_UNIFIED
                                                   : comms::TorchCommWinAccessType::WIN_ACCESS_TYPE_SEPARATE;
  return attributes;
}

const at::Tensor& Window::reached(int rank) const {
  if (gpu_ != nullptr) return gpu_->bytes(rank);
  return rank == communicator("a call").rank_ ? inbox_->bytes() : peers_[static_cast<std::size_t>(rank)].mapped;
}

Inbox::Milliseconds Window::limit_of(Inbox::Milliseconds timeout) const {
  return timeout.count() > 0 ? timeout : communicator("a call").options_.timeout;
}

WorkPtr Window::run(const char* operation, bool async, const TorchCommTutti::Given& options,
                    const std::function<Inbox::CallPtr()>& issue) {
  return communicator(operation).run(
      operation, gpu_ != nullptr ? &inbox_->bytes() : nullptr, async, options,
      [&](c10d::Backend& /*group*/) { return issue(); }, limit_of(options.timeout));
}

}  // namespace tutti::torchcomms
