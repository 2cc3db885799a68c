// The thread of a communicator that carries out what kernels ask of ports (include/tutti/device/port.cuh).
//
// It takes requests from the ring in order, gives copies and signals to the copy engine, and answers flushes when the
// engine has passed their marks. Nothing of it waits for another rank: copies into memory that a dead process has left
// mapped are local operations. Between requests it looks for new ones, at first all the time, then at growing intervals
// (IdlePace), because a kernel cannot ring a bell on the host.
//
// When the communicator fails or is aborted, the proxy leaves: kernels that wait for it end by the same abort. When the
// proxy itself fails (a request out of bounds, an error of CUDA), it aborts the communicator and keeps the reason.
//
// Ownership: owns the engine; the ring's memory is the caller's and outlives it. Thread rule: public members may be
// called from any thread. Lock: mutex_ guards all members below it; the proxy holds it while it carries out a request.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "channel/cuda/copy_engine.h"
#include "channel/cuda/port_ring.h"
#include "tutti/error.h"

namespace tutti::cuda {

// How long to wait before the next look at an empty ring.
class IdlePace {
 public:
  using Clock = std::chrono::steady_clock;
  static constexpr std::chrono::microseconds kSpin{200};     // after the last request: no pause
  static constexpr std::chrono::microseconds kLongest{200};  // a look takes a few: well under 5 % of a core

  void busy(Clock::time_point now) noexcept {
    last_ = now;
    pause_ = std::chrono::microseconds(10);
  }
  std::chrono::microseconds next(Clock::time_point now) noexcept {
    if (now - last_ < kSpin) return std::chrono::microseconds(0);
    const auto pause = pause_;
    pause_ = std::min(2 * pause_, kLongest);
    return pause;
  }

 private:
  Clock::time_point last_{};
  std::chrono::microseconds pause_{10};
};

class PortProxy {
 public:
  struct Shared {
    device::PortSlot* slots = nullptr;  // pinned host memory, as the host sees it
    std::uint64_t* tail = nullptr;
    std::uint64_t* flushed = nullptr;  // by peer
    std::uint32_t size = 0;            // of the ring
    device::HostControl* control = nullptr;
  };

  // Starts the thread.
  PortProxy(std::unique_ptr<CopyEngine> engine, const Shared& shared, int rank, int ranks);
  // Carries out what is in the ring, unless the communicator has failed, and waits for the copies.
  ~PortProxy();
  PortProxy(const PortProxy&) = delete;
  PortProxy& operator=(const PortProxy&) = delete;

  // Memory that requests name by the returned number: `data[r]` is rank r's part as this rank sees it, null where
  // puts do not go. Throws Error(kExhausted) if there are too many.
  std::uint32_t add_memory(std::vector<std::byte*> data, std::size_t bytes);
  // A port to `peer` whose signals count up `word`, in the peer's memory.
  std::uint32_t add_port(int peer, std::uint64_t* word);
  // A memory and the ports whose words lie in it, after all requests made so far are complete. Their numbers may come
  // again.
  void remove(std::uint32_t memory, const std::vector<std::uint32_t>& ports);

  // Waits until all requests made so far, and their copies, are complete, or the proxy has left.
  void drain();

  // What the proxy itself has met. Takes no lock while there is nothing.
  std::optional<Error> failure() const;

 private:
  struct Memory {
    std::vector<std::byte*> data;  // empty: removed
    std::size_t bytes = 0;
  };
  struct Port {
    int peer = -1;  // -1: removed
    std::uint64_t* word = nullptr;
    std::uint64_t signals = 0;
  };

  void run() noexcept;
  void serve();
  bool serve_one();
  bool answer_flushes();
  bool carry_out(const device::PortRequest& request);
  void put(const device::PortRequest& request, int peer);
  std::byte* place(std::uint32_t memory, int owner, std::uint64_t offset, std::uint64_t bytes, const char* what) const;
  bool communicator_failed() const noexcept;
  void fail(const Error& error) noexcept;

  const std::unique_ptr<CopyEngine> engine_;
  const Shared shared_;
  const int rank_;
  // The proxy's own.
  PortRing ring_;
  std::vector<std::deque<std::uint64_t>> flushes_;  // by peer: positions whose marks are under way
  std::size_t flushes_under_way_ = 0;
  std::optional<std::uint64_t> done_;  // the position of a request of which all but the flush has been carried out

  mutable std::mutex mutex_;
  std::condition_variable bell_;     // the proxy sleeps on it
  std::condition_variable drained_;  // drain() sleeps on it
  std::vector<Memory> memories_;
  std::vector<Port> ports_;
  std::uint64_t drains_asked_ = 0, drains_done_ = 0;
  bool stopping_ = false;
  bool left_ = false;
  std::optional<Error> failure_;
  std::atomic<bool> failed_{false};  // failure_ is there

  std::thread thread_;  // last: it uses all above
};

}  // namespace tutti::cuda
