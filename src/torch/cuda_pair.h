// Messages from one rank to another: a stream, and a communicator that a thread of its own makes.
//
// Making it waits for the peer's first message. Nobody may wait for that who has only issued one: with every rank of a
// ring sending first, no rank would come to its receive. So messages issued meanwhile are queued (deferred_calls.h).
//
// If making fails (the peer does not come within the group's timeout, the group is aborted or destroyed), the messages
// of this direction fail for good, each with the same reason; the group itself is not poisoned.
//
// Ownership: held by the CudaSide. Thread rule: all members from any thread.
#pragma once

#include <c10/core/Stream.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "communicator/deferred_calls.h"
#include "communicator/group_bootstrap.h"
#include "tutti/cuda_communicator.h"

namespace tutti::face {

// A communicator and the stream on which it runs asynchronous calls.
struct CudaLane {
  std::shared_ptr<CudaCommunicator> communicator;
  c10::Stream stream;
};

class CudaPair {
 public:
  struct Plan {
    GroupBootstraps bootstraps;
    std::string id;  // new in the group
    int from, to;    // ranks of the group, for messages to people
    CudaOptions options;
  };

  // Starts to make the communicator, of which the sender is rank 0 and the receiver rank 1.
  CudaPair(Plan plan, c10::Stream stream);
  // Waits for the thread, which gives up first; lets go of Python's global lock meanwhile.
  ~CudaPair();

  // Throws Error(kInvalidArgument) if the current stream is being captured: what is not made yet cannot become a part
  // of a graph.
  static void refuse_capture(c10::Device device, int peer);

  const c10::Stream& stream() const noexcept { return stream_; }
  // Null while it is being made or queued messages have not run: then queue(). Throws Error if making failed.
  const CudaLane* lane() const { return calls_->ready() ? &*lane_ : nullptr; }
  // As DeferredCalls::queue.
  bool queue(DeferredCalls::Call& call) { return calls_->queue(call); }

  // Null while it is being made.
  std::shared_ptr<CudaCommunicator> communicator() const;
  // Making ends within a second; what is made already is aborted.
  void abort(const std::string& reason) noexcept;
  // Making ends within a second; what is made already goes on.
  void give_up(const std::string& reason) noexcept;
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  void make();
  void throw_if_given_up() const;

  const Plan plan_;
  const c10::Stream stream_;
  // Written by the maker before the calls are ready, and never again; readers have asked ready() first.
  std::optional<CudaLane> lane_;

  mutable std::mutex mutex_;  // guards the members below; a leaf but for the communicator's own locks
  std::shared_ptr<CudaCommunicator> communicator_;
  std::optional<std::string> given_up_;  // why the peer is awaited no longer
  bool aborted_ = false;
  std::chrono::milliseconds timeout_;

  std::unique_ptr<DeferredCalls> calls_;  // the last member: its thread uses the others
};

}  // namespace tutti::face
