// Events on CUDA streams, used again: to make one and to destroy it costs more than to record it.
//
// An event that is given back has done what it was for: streams that wait for it took over what it stood for when they
// were told to, also inside a capture. So it may be recorded anew, on any stream of its device, at once.
//
// Ownership: a group holds its pool, and each event that somebody has holds it, too. Thread rule: the pool from any
// thread; an event from one at a time.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace tutti::face {

class CudaEvents {
 public:
  // So many lie unused in a pool. What a burst of calls that nobody waits for has needed beyond is destroyed.
  static constexpr std::size_t kKept = 256;

  CudaEvents() { unused_.reserve(kKept); }
  // A forked child may not touch CUDA: it leaves them, here and in give_back().
  ~CudaEvents();
  CudaEvents(const CudaEvents&) = delete;
  CudaEvents& operator=(const CudaEvents&) = delete;

  // Recorded on a stream of `device`, or new.
  c10::Event take(c10::DeviceIndex device);
  void give_back(c10::Event event) noexcept;

 private:
  std::mutex mutex_;
  std::vector<c10::Event> unused_;  // guarded by mutex_
};
using CudaEventsPtr = std::shared_ptr<CudaEvents>;

// An event of a pool, recorded on a stream, until it is destroyed.
class CudaEvent {
 public:
  CudaEvent(CudaEventsPtr events, const c10::Stream& stream)
      : events_(std::move(events)), event_(events_->take(stream.device_index())) {
    event_.record(stream);
  }
  ~CudaEvent() { events_->give_back(std::move(event_)); }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  // `stream` waits for it.
  void block(const c10::Stream& stream) const { event_.block(stream); }
  // Also while another thread captures: CUDA would else end the capture.
  bool query() const;

 private:
  const CudaEventsPtr events_;
  c10::Event event_;
};

}  // namespace tutti::face
