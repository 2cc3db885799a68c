// What a group on NCCL needs of its device besides NCCL: order and memory on streams. The plug-in for CUDA has it
// (communicator/cuda/cuda_stream_work.h); tests have one whose device is the host.
//
// Thread rule: all members from any thread. They make the device current that they are of, and leave the caller's.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "tutti/stream_communicator.h"

namespace tutti {

class StreamWork {
 public:
  // A point in what a stream holds. Its last share gives it back.
  using Mark = std::shared_ptr<void>;

  virtual ~StreamWork() = default;

  virtual int device() const noexcept = 0;
  // Whether NCCL reduces fp8 there.
  virtual bool reduces_fp8() const noexcept = 0;
  virtual bool is_capturing(DeviceStream stream) const = 0;
  // Throw Error(kInternal), or kExhausted.
  virtual Mark mark(DeviceStream stream) = 0;
  // What comes on `stream` from now on waits for the mark.
  virtual void follow(const Mark& mark, DeviceStream stream) = 0;
  virtual void copy(std::byte* to, const std::byte* from, std::size_t bytes, DeviceStream stream) = 0;
  // Until its last share goes, what is enqueued on `stream` by then may use it.
  virtual std::shared_ptr<std::byte> memory(std::size_t bytes, DeviceStream stream) = 0;
  // Whether the device has passed it; true, too, where it has failed.
  virtual bool reached(const Mark& mark) noexcept = 0;

  // A stream of the group's own, made once.
  virtual DeviceStream own_stream() = 0;
  // Waits on the host for what `stream` holds.
  virtual void wait(DeviceStream stream) = 0;
  // Runs `work`, which calls NCCL, as the device wants it: it is the current one, and other threads may be capturing.
  virtual void run(const std::function<void()>& work) = 0;
};

}  // namespace tutti
