// What a process group has for CUDA tensors: its communicators on GPUs, and the streams of its asynchronous calls.
//
// The communicator of all ranks is made at the first call with a CUDA tensor, or when torch binds the group to a device
// (init_process_group(device_id=...)): both are collective. Sends and receives outside a batch concern two ranks only,
// so each ordered pair has a communicator and a stream of its own: they wait for nobody else, and a send never holds up
// a receive.
//
// Ownership: held by the group; works hold the communicator of their call. Thread rule: all members from any thread.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "tutti/cuda_communicator.h"

namespace tutti::face {

// A communicator and the stream on which it runs asynchronous calls.
struct CudaLane {
  std::shared_ptr<CudaCommunicator> communicator;
  c10::Stream stream;
};

class CudaSide {
 public:
  // `id` is unique in the store for the life of the job.
  CudaSide(c10::intrusive_ptr<c10d::Store> store, std::string id, int rank, int size, CudaOptions options);

  // All ranks, on `device`. Throws Error where there is no GPU support or the ranks are on several hosts, and
  // Error(kInvalidArgument) for a second device: a rank has one.
  const CudaLane& group(c10::Device device);
  // This rank and `peer`, for messages in one direction.
  const CudaLane& pair(c10::Device device, int peer, bool send);

  bool in_use() const;
  std::optional<Error> failure() const;
  void abort(const std::string& reason) noexcept;
  void set_timeout(std::chrono::milliseconds timeout);
  std::uint64_t sequence() const;

 private:
  using Pair = std::pair<int, bool>;  // peer, whether this rank sends

  CudaLane make(c10::Device device, const std::string& id, int rank, int size) const;
  void check_device(c10::Device device) const;
  template <typename Visit>
  void each(Visit&& visit) const;

  const c10::intrusive_ptr<c10d::Store> store_;
  const std::string id_;
  const int rank_;
  const int size_;

  // Two locks: making a communicator waits for other ranks, and abort() must not wait for that. `making_` is taken
  // first.
  std::mutex making_;
  mutable std::mutex mutex_;  // guards the members below; entries are never removed
  CudaOptions options_;
  std::optional<CudaLane> group_;
  std::map<Pair, CudaLane> pairs_;
};

}  // namespace tutti::face
