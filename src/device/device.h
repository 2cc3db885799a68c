// What a device gives to the layers above: memory, and communicators on it. CPU memory is served by the library itself;
// other devices are plug-ins (libtutti_<name>.so) found by DeviceRegistry when a tensor of theirs is first seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "bootstrap/bootstrap.h"
#include "tutti/error.h"
#include "tutti/stream_communicator.h"
#include "tutti/types.h"

namespace tutti {

class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const noexcept = 0;  // "cpu", "cuda", "metal"

  virtual void* allocate(std::size_t bytes) = 0;  // throws Error(kExhausted)
  virtual void deallocate(void* data, std::size_t bytes) noexcept = 0;

  // Between memory of the device and of the host, or within one; done when it returns. Throws Error(kInternal).
  virtual void copy(void* dst, const void* src, std::size_t bytes) const = 0;

  // Memory of device `index` (-1: the current one) that groups can register, with undefined contents; freed with its
  // last share. Throws Error(kExhausted), or Error(kUnsupported) where devices of this kind have none.
  virtual std::shared_ptr<std::byte> make_memory(std::size_t /*bytes*/, int /*index*/) {
    throw_error(ErrorKind::kUnsupported, "device '" + std::string(name()) + "' has no memory that can be registered");
  }

  // Collective: a communicator of the ranks of `bootstrap`, which it may keep, on this device's memory. `options` has
  // its config. Throws Error(kUnsupported) where collectives are not run by the device.
  virtual StreamCommunicatorPtr make_communicator(const BootstrapPtr& /*bootstrap*/, const DeviceOptions& /*options*/) {
    throw_error(ErrorKind::kUnsupported, "device '" + std::string(name()) + "' has no communicators of its own");
  }

  // The index of the device on which this address lies; -1: on none of this kind.
  virtual int index_of(const void* /*address*/) noexcept { return -1; }

  // For devices with graphs: whether work on `stream` becomes part of one now; of `device`, -1 for the current one.
  virtual bool is_capturing(int /*device*/, DeviceStream /*stream*/) { return false; }
  // The number of that capture, which no other one of the process has; 0: none.
  virtual std::uint64_t capture_of(int /*device*/, DeviceStream /*stream*/) { return 0; }
  // A thread that is not the program's begins: until it ends it may allocate while another thread captures. It works
  // for `device` alone, which becomes the current one there (-1: for any), so that none is made ready for nothing.
  virtual void begin_thread(int /*device*/) {}
  // Runs `action`, which may ask for events, wait and allocate while another thread captures. For threads of programs.
  virtual void beside_captures(const std::function<void()>& action) { action(); }

  // Waits on the host for a stream of `device` (-1: the current one). Throws Error(kInternal) of what has failed.
  virtual void synchronize_stream(int /*device*/, DeviceStream /*stream*/) {}
};

// The CPU device; lives as long as the process.
Device& cpu_device() noexcept;

}  // namespace tutti
