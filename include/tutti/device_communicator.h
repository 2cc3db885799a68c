// The calls of a group on memory of a device, for faces that have neither streams nor works of their own. Names no kind
// of device but by a string; beside it stands the group's Communicator, for main memory.
//
// Nothing is made before it is needed. What a first call makes is made by the ranks that the call concerns, together: a
// collective's, by all; a message's, by its two ranks. So the first message between two ranks waits for both to name
// each other, in either direction. Later ones wait for what their data need.
//
// Streams: a call on a stream of the caller's is enqueued and returns; the memory stays, and what follows is ordered,
// as in tutti/cuda_communicator.h. A call without one runs on a stream of the group, behind what the caller has ordered
// before it there (own_stream(), message_stream()), and returns when it is done, as calls on main memory do.
//
// Thread rule: every member may be called from any thread; messages of different peers or directions wait for each
// other in none. Errors: as Communicator's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti {

using DeviceStream = void*;  // opaque; CUDA's: cudaStream_t

// Memory of a call or message, and how it is ordered.
struct DevicePlace {
  int device = -1;                     // its index; -1: the thread's current one
  std::optional<DeviceStream> stream;  // none: the group's own, and wait
  std::chrono::milliseconds timeout{};
};

class DeviceCommunicator {
 public:
  // Of the ranks of `communicator`, on devices of `kind`: "cuda", or what another plug-in libtutti_<kind>.so serves.
  // What ranks make together they agree on over `communicator`: no store is asked, a rank that dies meanwhile is an
  // error of the others within a second, and once it has failed or is destroyed nothing more can be made. One for each
  // kind and communicator. Makes nothing yet: where there is no plug-in, what first needs it throws
  // Error(kUnsupported).
  static std::shared_ptr<DeviceCommunicator> create(const std::string& kind, Communicator& communicator);
  virtual ~DeviceCommunicator() = default;

  // The streams on which calls without one run. Collective where nothing is made yet, as the call would be.
  virtual DeviceStream own_stream(int device) = 0;
  virtual DeviceStream message_stream(int device, int peer, bool send) = 0;

  // The pointers of `call` are memory of the device. An algorithm that it names (Call::choice) is made ready by all
  // ranks when it is first named.
  virtual void run(const Call& call, const DevicePlace& place) = 0;
  virtual void send(const void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) = 0;

  // As Communicator::set_algorithms; kept while there is no communicator yet.
  virtual void set_algorithms(AlgorithmSet set) = 0;
  // What a call would run and why, or why there is nothing to say yet.
  virtual std::string explain(const Call& call) const = 0;

  // Waits on the host for a stream of the caller's on a device (-1: the thread's current one).
  virtual void synchronize(int device, DeviceStream stream) = 0;

  virtual std::optional<Error> failure() const = 0;
  virtual void abort(const std::string& reason) noexcept = 0;
  // Of collectives and messages together.
  virtual Metrics metrics() const = 0;
  virtual void reset_metrics() noexcept = 0;
  // As Communicator::flight_record: of the collectives first, then of each peer's messages.
  virtual std::vector<std::string> flight_records() const = 0;
};

// On which device of `kind` this address lies; none: on no such device, as far as this process uses any.
std::optional<int> device_of(const std::string& kind, const void* address);

}  // namespace tutti
