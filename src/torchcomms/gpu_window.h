// A window on CUDA tensors whose ranks' GPUs reach each other: calls are enqueued on the caller's current stream, and
// the host waits for nobody.
//
// put() copies into the peer's memory, as this GPU maps it; a signal is a message without bytes behind what the stream
// holds, and waiting for one is receiving it. Messages of a pair of ranks match in order, so that each window has a
// group of its own: the order in which a rank waits for several windows is then its own business.
//
// Ownership: the window's; the tensors of peers are valid until end(). A signal touches no memory but the group's own,
// which its kernel's graph keeps, too: one may be under way, or be replayed, for longer than anything here lives. A
// forked child leaves all of CUDA's. Thread rule: the window's.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>
#include <vector>

#include "aten/cuda_events.h"
#include "torchcomms/window_group.h"

namespace tutti::torchcomms {

class GpuWindow final {
 public:
  using CallPtr = c10::intrusive_ptr<c10d::Work>;

  // Where a rank's tensor lies in its storage. Those of all ranks are as large.
  struct Place {
    std::int64_t first = 0, bytes = 0;
  };

  // Collective over `group`, which no other window uses: registers this rank's storage of `tensor`. Null on all ranks
  // where their GPUs do not reach each other.
  static std::unique_ptr<GpuWindow> make(std::shared_ptr<WindowGroup> group, const at::Tensor& tensor, int rank,
                                         const std::vector<Place>& places);
  ~GpuWindow();
  GpuWindow(const GpuWindow&) = delete;
  GpuWindow& operator=(const GpuWindow&) = delete;

  // `data` has the window's dtype; `first` is a byte of the peer's tensor.
  CallPtr put(const at::Tensor& data, int peer, std::int64_t first);
  CallPtr signal(int peer);
  // Null for this rank itself where it has not signalled, in the same capture or outside of any as it waits: nobody
  // else could.
  CallPtr wait_signal(int peer);

  // The tensor of a rank, as bytes, and its group.
  const at::Tensor& bytes(int rank) const { return bytes_[static_cast<std::size_t>(rank)]; }
  const std::shared_ptr<WindowGroup>& group() const noexcept { return group_; }

  // Waits on the host until what this rank has put is written, and its last signals have come and gone, but for those
  // in graphs. Throws where that takes longer than `limit`.
  void settle(std::chrono::milliseconds limit);
  // Collective, once all ranks have settled: peers map this rank's memory no more. Whether another window may have the
  // group, which all ranks decide alike over `host`, a group of the same ranks: not where a signal is left that nobody
  // has waited for, where graphs hold signals, or the group has failed.
  bool end(c10d::Backend& host, std::chrono::milliseconds timeout);

 private:
  GpuWindow(std::shared_ptr<WindowGroup> group, at::Tensor storage, int rank, std::vector<at::Tensor> bytes);
  // Signals once between all ranks: the first of a group would else wait on the host for its peer's wait.
  void meet();
  CallPtr message(bool send, int peer);
  void written(const c10::Stream& stream);
  struct Own {
    Own(const face::CudaEventsPtr& events, const c10::Stream& of, std::uint64_t in)
        : event(events, of), stream(of), capture(in) {}
    face::CudaEvent event;
    c10::Stream stream;
    std::uint64_t capture;  // 0: none
  };

  const std::shared_ptr<WindowGroup> group_;
  const at::Tensor storage_;  // as bytes
  const int rank_;
  std::vector<at::Tensor> bytes_;             // by rank
  const at::Tensor token_;                    // what a signal sends, and receives: no bytes
  std::vector<CallPtr> last_;                 // by rank, sent and awaited: what was not captured
  std::vector<std::int64_t> sent_, awaited_;  // signals, by rank
  bool captured_ = false;                     // signals of which replays tell nothing
  std::vector<std::pair<c10::Stream, std::unique_ptr<face::CudaEvent>>> writes_;  // the last put of each stream
  const face::CudaEventsPtr events_ = std::make_shared<face::CudaEvents>();
  std::list<Own> own_;  // signals to this rank itself
};

}  // namespace tutti::torchcomms
