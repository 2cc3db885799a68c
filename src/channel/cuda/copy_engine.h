// What carries out the requests of ports: streams of CUDA (stream_engine.h), or a test's stand-in.
//
// Everything given to it happens later, per peer in the order in which it was given. Thread rule: one thread, the
// proxy's; finish() also on another one when that has ended.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tutti::cuda {

class CopyEngine {
 public:
  virtual ~CopyEngine() = default;
  CopyEngine() = default;
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;

  // The first call, on the thread that makes all others. Members throw Error(kInternal) when the device refuses.
  virtual void begin_thread() = 0;
  // Both pointers as this rank's device sees them.
  virtual void copy(int peer, std::byte* to, const std::byte* from, std::size_t bytes) = 0;
  // Stores a word of the peer's memory: whoever loads it with acquire sees all copies before it.
  virtual void store(int peer, std::uint64_t* word, std::uint64_t value) = 0;
  // Puts a mark behind what was given so far. False: too many are under way, look again later.
  virtual bool mark(int peer) = 0;
  // How many marks have been reached since the last look: everything before them is complete.
  virtual int take_reached(int peer) = 0;
  // Waits until everything is complete.
  virtual void finish() = 0;
};

}  // namespace tutti::cuda
