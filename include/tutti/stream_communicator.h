// Collectives and messages on memory of devices, enqueued on their streams: what a plug-in for a kind of device
// implements, and what faces see of it. Names no kind.
//
// A StreamCommunicator belongs to one rank and one device. run() enqueues on `stream` and returns; nothing on the host
// is awaited. The output is complete, and the input may be overwritten, when the stream has passed that point. Calls of
// one communicator run in the order of issue, also across streams.
//
// Errors: a call is checked first (kInvalidArgument, kUnsupported: nothing is enqueued). What goes wrong on the device
// is raised by failure(), by the next call, and by synchronize(). The communicator is then poisoned for good.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/call.h"
#include "tutti/device_options.h"
#include "tutti/group.h"
#include "tutti/serving.h"
#include "tutti/user_algorithm.h"

namespace tutti {

using DeviceStream = void*;  // opaque; CUDA's: cudaStream_t

// One point-to-point message of a batch.
struct DeviceMessage {
  bool send = true;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = -1;
  std::uint32_t tag = 0;  // part of what both sides must agree on; messages of a pair match in order
};

// Memory of the caller.
struct DeviceRange {
  void* data = nullptr;
  std::size_t bytes = 0;
};

// Memory of one size on every rank, mapped by all ranks. It must outlive all work that uses it.
class DeviceRegion {
 public:
  virtual ~DeviceRegion() = default;
  virtual std::size_t bytes() const noexcept = 0;
  // Of rank `rank`, as this rank's device sees it.
  virtual std::byte* data(int rank) const noexcept = 0;
};

// Its timeout is of every wait on the device. Its metrics count what was issued or captured here, and what the device
// has run; no times. These and the flight record are read from the device.
class StreamCommunicator : public Group {
 public:
  virtual int device() const noexcept = 0;

  // Refuses a call that cannot work. The same rules as Communicator::check.
  virtual void check(const Call& call) const = 0;

  // Enqueues a collective. The pointers of `call` are memory of this rank's device (or memory it can reach). `timeout`
  // is of each of its waits; zero means the communicator's, which a captured call always follows.
  virtual void run(const Call& call, DeviceStream stream, std::chrono::milliseconds timeout = {}) = 0;
  // Enqueues a batch of sends and receives in any order: none of them waits for another one, but those of one pair and
  // direction run in order.
  virtual void exchange(const std::vector<DeviceMessage>& messages, DeviceStream stream,
                        std::chrono::milliseconds timeout = {}) = 0;

  // Collective: gives the communicator algorithms for the calls that follow, as Communicator::set_algorithms does.
  // Ranks compare what they give: if it differs, all throw Error(kMismatch), and nothing has changed. Not during a
  // capture.
  virtual void set_algorithms(AlgorithmSet set);
  // Collective where this communicator has not seen the algorithm yet: makes it ready, so that calls may name it
  // (Call::choice). Throws the same Error(kUnsupported) on all ranks if one of them cannot run it.
  virtual void prepare(const UserAlgorithmPtr& algorithm);

  // Collective: lets run() use the callers' own memory without copies, whoever has allocated it. All ranks give as many
  // ranges of the same sizes, in the same order; the addresses may differ. Not during a capture. Throws the same Error
  // on all ranks, and registers nothing, if one of them cannot: kUnsupported says why.
  virtual std::vector<std::shared_ptr<DeviceRegion>> register_memory(const std::vector<DeviceRange>& ranges);
  // Collective: the opposite, for the same regions on all ranks; give up every other share of them first. The memory
  // may be freed afterwards, if no graph uses it.
  virtual void unregister_memory(std::vector<std::shared_ptr<DeviceRegion>> regions);
  // Whether all of [data, data + bytes) lies in one registered range.
  virtual bool is_registered(const void* data, std::size_t bytes) const;
  // Calls that have run without copies so far, captured ones included.
  virtual std::uint64_t direct_calls() const noexcept { return 0; }

  // `lost` tells whether a rank of the group has died or given up, without waiting for anything. From then on look(),
  // which the process's watch calls ten times a second, ends what waits for other ranks once it does, also what is
  // issued later, and that raises what it tells. What does not wait any more is left alone.
  virtual void follow(std::function<std::optional<Error>()> /*lost*/) {}
  virtual void look() noexcept {}
  // Whether its limits of time hold only where it is looked at.
  virtual bool must_be_looked_at() const noexcept { return false; }

  // What inference engines need, if the device has it; else null.
  virtual Serving* serving() noexcept { return nullptr; }

  // A stream of the communicator's own, for callers that have none; it waits for no other one.
  virtual DeviceStream own_stream() = 0;
  virtual bool is_capturing(DeviceStream /*stream*/) const { return false; }  // calls on it become parts of a graph now
  // Waits on the host for `stream`, then raises a failure if there is one.
  virtual void synchronize(DeviceStream stream) = 0;

  // What a call would run: "ll_one_shot@1x128".
  virtual std::string explain(const Call& call) const = 0;
  // The same with reasons: each plan that might serve the call, and the kernel, a line each.
  virtual std::string candidates(const Call& call) const { return explain(call); }
};
using StreamCommunicatorPtr = std::shared_ptr<StreamCommunicator>;

}  // namespace tutti
