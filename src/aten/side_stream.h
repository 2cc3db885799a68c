// A stream of PyTorch's on which a group runs what the host does not wait for: one of its pool of high priority, since
// what others wait for goes before what only this rank computes.
//
// The pool has 32 streams and deals them out in turn, so two groups may get the same one, or two peers of a group: then
// a message waits behind another one that has nothing to do with it, and if that is so on both sides, for good. So of
// those that are dealt the one is taken that fewest groups of this process use: nobody's, while there are not more than
// 32 in use. What a program takes of the pool (of the highest priority that PyTorch has) is not known here. Streams of
// Tutti's own would be free of that, but CUDA may wait for kernels under way when it makes one; the pool's are made at
// once.
//
// Ownership: of the use; the stream is PyTorch's and lasts. Thread rule: making and destroying from any thread.
// Lock: one of the process, a leaf.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstddef>

namespace tutti::face {

class SideStream {
 public:
  static constexpr std::size_t kOfPool = 32;  // per device and priority

  explicit SideStream(c10::Device device);
  ~SideStream();
  SideStream(const SideStream&) = delete;
  SideStream& operator=(const SideStream&) = delete;

  const c10::Stream& get() const noexcept { return stream_; }

 private:
  const c10::Stream stream_;
};

}  // namespace tutti::face
