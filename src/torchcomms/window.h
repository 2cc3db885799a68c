// A window of TorchComms: a tensor of each rank that the others put data into.
//
// On CUDA tensors whose ranks' GPUs reach each other, calls are enqueued on the caller's stream (gpu_window.h).
// Elsewhere data and signals are messages (inbox.h), which the target's library takes while its program does something
// else. Where the ranks of a host map the tensor's memory (tutti.empty), put() writes there itself, before it returns,
// and map_remote_tensor() shows it. A signal tells that all that this rank has put before it is there.
//
// Ownership: the user's; it must not be used after its communicator has gone. Thread rule: TorchCommWindow's, the
// caller serializes with the communicator's calls.
#pragma once

#include <comms/torchcomms/TorchCommBackend.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "aten/peer_tensors.h"
#include "torchcomms/backend.h"
#include "torchcomms/gpu_window.h"
#include "torchcomms/inbox.h"

namespace tutti::torchcomms {

class Window final : public comms::TorchCommWindow {
 public:
  explicit Window(std::shared_ptr<Link> link);

  // Collective. The tensor is contiguous; sizes may differ from rank to rank, the dtype may not.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  // Collective: returns when no rank puts any more.
  void tensor_deregister() override;
  std::shared_ptr<comms::TorchCommWindow> clone() override;

  WorkPtr put(const at::Tensor& tensor, int peer, std::size_t first, bool async,
              const comms::PutOptions& options) override;
  WorkPtr signal(int peer, bool async, const comms::SignalOptions& options) override;
  WorkPtr wait_signal(int peer, bool async, const comms::WaitSignalOptions& options) override;
  at::Tensor map_remote_tensor(int rank) override;
  std::shared_ptr<comms::TorchCommWindowAttr> get_attr(int rank) override;

 private:
  // Refuses what cannot be done now.
  TorchCommTutti& communicator(const char* operation) const;
  Inbox& inbox(const char* operation, int peer) const;
  // Runs what waits for peers, without Python's lock. What that fails of is the communicator's failure, too, before
  // this raises.
  template <class Call>
  void collectively(const Call& call);
  // As for other calls: its memory is there.
  static void require_dense(const TorchCommTutti& owner, const char* operation, const at::Tensor& tensor);
  // Tells the other ranks of this one's tensor, and learns of theirs. Where all of them are of GPUs, and have storages
  // of one size, says where they lie in these.
  std::optional<std::vector<GpuWindow::Place>> exchange(const TorchCommTutti& owner, c10d::Backend& group,
                                                        const at::Tensor& tensor, const face::Loan& loan,
                                                        std::int64_t number);

  // For what goes by way of the host, which knows nothing of streams: waits for what the current one of `device` holds.
  // Throws where that takes longer than `limit`, of `what`. Nothing where `device` is no GPU.
  void await_stream(const TorchCommTutti& owner, const char* operation, c10::Device device, Inbox::Milliseconds limit,
                    const std::string& what) const;
  // Of a wait for a call that was given `timeout`.
  Inbox::Milliseconds limit_of(Inbox::Milliseconds timeout) const;
  WorkPtr run(const char* operation, bool async, const TorchCommTutti::Given& options,
              const std::function<Inbox::CallPtr()>& issue);
  // The bytes of a rank's tensor, where this rank reaches them; else undefined.
  const at::Tensor& reached(int rank) const;

  struct Peer {
    std::int64_t elements = 0;  // of its tensor
    at::Tensor mapped;          // its bytes, where this rank maps them; else undefined
  };

  const std::shared_ptr<Link> link_;
  std::shared_ptr<Inbox> inbox_;    // null: nothing is registered
  std::unique_ptr<GpuWindow> gpu_;  // null: calls go by the inbox
  std::vector<Peer> peers_;
  std::int64_t number_ = 0;  // of this communicator's windows, when it was registered
  const face::CudaEventsPtr events_ = std::make_shared<face::CudaEvents>();
};

}  // namespace tutti::torchcomms
