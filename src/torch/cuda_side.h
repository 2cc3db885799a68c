// What a process group has for CUDA tensors: its communicators on GPUs, and the streams of its asynchronous calls.
//
// The communicator of all ranks is made at the first call with a CUDA tensor, or when torch binds the group to a device
// (init_process_group(device_id=...)): both are collective. Sends and receives outside a batch concern two ranks only,
// so each ordered pair has a communicator and a stream of its own (cuda_pair.h): they wait for nobody else, and a send
// never holds up a receive.
//
// Ownership: held by the group; works hold the communicator of their call. Thread rule: all members from any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Storage.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "communicator/group_bootstrap.h"
#include "torch/cuda_pair.h"
#include "tutti/communicator.h"
#include "tutti/cuda_communicator.h"

namespace tutti::face {

class CudaSide {
 public:
  // Of the ranks of `group`, over which they agree on what they make together.
  CudaSide(Communicator& group, CudaOptions options);
  // Ends the making of pairs, and waits for that: within a second.
  ~CudaSide();

  // All ranks, on `device`. Throws Error where there is no GPU support or the ranks are on several hosts, and
  // Error(kInvalidArgument) for a second device: a rank has one.
  const CudaLane& group(c10::Device device);
  // This rank and `peer`, for messages in one direction. Waits for nobody: the pair may still be being made. Throws
  // Error(kInvalidArgument) for a second device and for a new pair in a capture, and Error(kAborted) for a new pair
  // of a group that was aborted.
  CudaPair& pair(c10::Device device, int peer, bool send);

  // Collective: for calls on CUDA tensors from now on; kept while there is no communicator yet.
  void set_algorithms(AlgorithmSet set);

  // Collective (cuda_memory.cc): lets all ranks use these storages without copies, and holds them. Returns why that is
  // impossible, the same on all ranks; empty: done. Throws Error(kInvalidArgument) if the ranks' sizes differ.
  std::string register_storages(c10::Device device, std::vector<c10::Storage> storages);
  // Collective: the opposite. Throws Error(kInvalidArgument) if one of them is not registered.
  void unregister_storages(c10::Device device, const std::vector<c10::Storage>& storages);
  bool is_registered(const void* data, std::size_t bytes) const;
  // Calls without copies so far.
  std::uint64_t direct_calls() const;

  bool in_use() const;
  // `stream` waits for the asynchronous calls issued so far.
  void order_after_calls(const c10::Stream& stream) const;
  std::optional<Error> failure() const;
  void abort(const std::string& reason) noexcept;
  // Ends the making of pairs, within a second, and nothing else: messages whose peer has not come fail.
  void shutdown() noexcept;
  void set_timeout(std::chrono::milliseconds timeout);
  std::uint64_t sequence() const;
  // Of all communicators together.
  Metrics metrics() const;
  void reset_metrics() noexcept;
  // Of the group's communicator, empty if there is none, then of each pair's.
  std::vector<std::string> flight_records() const;

 private:
  using Pair = std::pair<int, bool>;  // peer, whether this rank sends
  struct Registered {
    c10::Storage storage;
    std::weak_ptr<CudaRegion> region;  // the communicator's
  };

  CudaLane make(c10::Device device);
  static const CudaLane& checked(const CudaLane& lane, c10::Device device);
  // The entry of this storage; null without. mutex_ is held.
  const Registered* find_registered(const c10::Storage& storage) const;
  template <typename Visit>
  void each(Visit&& visit) const;
  std::vector<std::shared_ptr<CudaCommunicator>> communicators() const;

  const GroupBootstraps bootstraps_;
  const int rank_;
  const int size_;

  // Two locks: making a communicator waits for other ranks, and abort() must not wait for that. `making_` is taken
  // first.
  std::mutex making_;
  int tries_ = 0;  // to make the group's communicator; under making_
  // Guards the members below; lanes are never removed. Taken before those of pairs; nothing that may wait for the GPU
  // or for a launch is called under it: abort() takes it.
  mutable std::mutex mutex_;
  CudaOptions options_;
  AlgorithmSet algorithms_;
  std::vector<Registered> registered_;  // before the communicator, which must end before they are freed
  std::optional<CudaLane> group_;
  std::atomic<const CudaLane*> made_group_{nullptr};  // group_, once made: each call asks, without a lock
  std::map<Pair, CudaPair> pairs_;
  std::optional<std::string> aborted_;  // why
};

}  // namespace tutti::face
