// What a group has for CUDA tensors: PyTorch's streams of its asynchronous calls, events on them, and the storages that
// it has registered. The communicators are the group's DeviceCommunicator's.
//
// That of all ranks is made at the first call with a CUDA tensor, or when torch binds the group to a device
// (init_process_group(device_id=...)): both are collective. Sends and receives outside a batch concern two ranks only,
// so each ordered pair has a communicator and a stream of its own: they wait for nobody else, and a send never holds up
// a receive.
//
// Ownership: held by the group; works hold the communicator of their call. Thread rule: all members from any thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "aten/cuda_events.h"
#include "aten/side_stream.h"
#include "tutti/device_communicator.h"

namespace tutti::face {

// A communicator, the stream on which it runs asynchronous calls, and the group's events.
struct CudaLane {
  StreamCommunicatorPtr communicator;
  c10::Stream stream;
  CudaEventsPtr events;
};

class CudaSide {
 public:
  explicit CudaSide(std::shared_ptr<DeviceCommunicator> devices) : devices_(std::move(devices)) {}
  // Waits for the threads that make pairs; lets go of Python's global lock meanwhile.
  ~CudaSide();

  DeviceCommunicator& devices() const noexcept { return *devices_; }
  // DeviceCommunicator::group(), and its stream.
  const CudaLane& group(c10::Device device);
  const CudaEventsPtr& events() const noexcept { return events_; }
  // The stream of messages in one direction.
  c10::Stream message_stream(c10::Device device, int peer, bool send);

  // Collective (cuda_memory.cc): lets all ranks use these storages, of one device, without copies, and holds them.
  // Returns why that is impossible, the same on all ranks; empty: done. Throws Error(kInvalidArgument) if the ranks'
  // sizes differ.
  std::string register_storages(std::vector<c10::Storage> storages);
  // The same for the storages of CUDA tensors, with errors as torch has them (errors.h): ValueError, too, if one is no
  // dense CUDA tensor, or they lie on several devices.
  std::string register_tensors(const std::vector<at::Tensor>& tensors);
  // Collective: the opposite. ValueError, too, if one of them is not registered.
  void unregister_tensors(const std::vector<at::Tensor>& tensors);
  bool is_registered(const at::Tensor& tensor) const;
  // Of a registered tensor, those of all ranks by rank, at the same place in their storages and of the same shape: on
  // this rank's device, which reaches them. Valid until the tensor is unregistered. ValueError if it is not registered.
  std::vector<at::Tensor> peer_tensors(const at::Tensor& tensor) const;
  // Calls without copies so far.
  std::uint64_t direct_calls() const;

  // `stream` waits for the asynchronous calls issued so far.
  void order_after_calls(const c10::Stream& stream) const;

 private:
  struct Registered {
    c10::Storage storage;
    std::weak_ptr<DeviceRegion> region;  // the communicator's
  };

  void unregister_storages(const std::vector<c10::Storage>& storages);
  // The entry of this storage; null without. mutex_ is held.
  const Registered* find_registered(const c10::Storage& storage) const;

  // Guards the members below; lanes and streams are never removed. Nothing that may wait is called under it.
  mutable std::mutex mutex_;
  std::list<Registered> registered_;             // before the communicators, which must end before they are freed
  std::shared_ptr<DeviceCommunicator> devices_;  // never changes before the end
  const CudaEventsPtr events_ = std::make_shared<CudaEvents>();
  std::unique_ptr<const SideStream> group_stream_;
  std::optional<CudaLane> group_;
  std::atomic<const CudaLane*> made_group_{nullptr};  // group_, once made: each call asks, without a lock
  std::map<std::pair<int, bool>, std::unique_ptr<const SideStream>>
      message_streams_;  // by peer, and whether this rank sends
};

}  // namespace tutti::face
