// The calls of a group on memory of devices. Names no kind of device but by a string; beside it stands the group's
// Communicator, for main memory.
//
// Nothing is made before it is needed. What a first call makes is made by the ranks that the call concerns, together,
// over the Communicator: a collective's, by all; a message's, by its two ranks. No store is asked; a rank that dies
// meanwhile is an error of the others within a second. Once the group is aborted or shut down, or its Communicator has
// failed or been destroyed, nothing more is made, and what is being made ends within a second. Until then it may hold
// the Communicator: where the last reference is dropped meanwhile nobody waits, and the Communicator ends with it.
//
// run(), send() and recv() are for faces that have neither streams nor works of their own: a call on a stream of the
// caller's is enqueued and returns; the memory stays, and what follows is ordered, as in tutti/stream_communicator.h. A
// call without one runs on a stream of the group, behind what the caller has ordered before it there (own_stream(),
// message_stream()), and returns when it is done, as calls on main memory do. Others take group() and pair().
//
// Of its metrics and flight record: those of all its communicators together.
//
// Thread rule: every member may be called from any thread; messages of different peers or directions wait for each
// other in none. Errors: as Communicator's.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>

#include "tutti/communicator.h"
#include "tutti/stream_communicator.h"

namespace tutti {

// Memory of a call or message, and how it is ordered.
struct DevicePlace {
  int device = -1;                     // its index; -1: the thread's current one
  std::optional<DeviceStream> stream;  // none: the group's own, and wait
  std::chrono::milliseconds timeout{};
};

// A message that is issued while its two ranks still make what it goes through: a thread of the library's enqueues it,
// in the order of issue. That thread runs run() or fail(), then wake(), then announce(), with no lock held.
class DeferredMessage {
 public:
  virtual ~DeferredMessage() = default;
  // The sender is rank 0 of `pair`, the receiver rank 1.
  virtual void run(const StreamCommunicatorPtr& pair) noexcept = 0;
  virtual void fail(const std::exception_ptr& error) noexcept = 0;
  // Lets those go on who wait for the message.
  virtual void wake() noexcept = 0;
  // Runs callbacks. Comes when nothing is queued any more, so that they may issue messages here and wait for them.
  virtual void announce() noexcept = 0;
};

class DeviceCommunicator : public Group {
 public:
  // Of the ranks of `communicator`, on devices of `kind`: "cuda", or what another plug-in libtutti_<kind>.so serves.
  // One for each kind and communicator. Where there is no plug-in, what first needs it throws Error(kUnsupported).
  // `options`: of what it makes. Name and timeout are the communicator's, and its settings where none are given.
  static std::shared_ptr<DeviceCommunicator> create(const std::string& kind, Communicator& communicator,
                                                    DeviceOptions options = {});

  virtual const std::string& kind() const noexcept = 0;

  // Of all ranks: made when it is first asked for, which is collective. Throws Error(kInvalidArgument) for a second
  // device: a rank of a group has one.
  virtual const StreamCommunicatorPtr& group(int device) = 0;
  // The same if it is there; else null.
  virtual StreamCommunicatorPtr made_group() const noexcept = 0;
  // For messages in one direction between this rank and `peer`; the sender is rank 0 in it. Null while the two ranks
  // make it, or while messages that were issued earlier wait for that: then defer(). The first one between two ranks
  // starts that, for both directions, and waits for nobody, except where `stream`, the caller's, is being captured:
  // what is recorded there can be queued for nobody, so that it waits until the pair is made. Throws what making has
  // failed by, for good.
  virtual StreamCommunicatorPtr pair(int device, int peer, bool send, std::optional<DeviceStream> stream) = 0;
  // Queues it; false, and leaves it, if the caller may issue it now through pair(), which has been asked before. Throws
  // as pair(), and Error(kExhausted) without memory; then it is left, too, and nobody will call it.
  virtual bool defer(int peer, bool send, std::unique_ptr<DeferredMessage>& message) = 0;
  // Whether anything was made, or begun.
  virtual bool in_use() const = 0;

  // The streams on which calls without one run. Collective where nothing is made yet, as the call would be.
  virtual DeviceStream own_stream(int device) = 0;
  virtual DeviceStream message_stream(int device, int peer, bool send) = 0;

  // The pointers of `call` are memory of the device. An algorithm that it names (Call::choice) is made ready by all
  // ranks when it is first named.
  virtual void run(const Call& call, const DevicePlace& place) = 0;
  // The first message between two ranks waits for both to name each other, in either direction.
  virtual void send(const void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) = 0;
  virtual void recv(void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) = 0;

  // As Communicator::set_algorithms; kept while there is no communicator yet.
  virtual void set_algorithms(AlgorithmSet set) = 0;
  // What a call would run and why, or why there is nothing to say yet.
  virtual std::string explain(const Call& call) const = 0;

  // Waits on the host for a stream of the caller's on a device (-1: the thread's current one).
  virtual void synchronize(int device, DeviceStream stream) = 0;

  // Later calls raise Error(kAborted), and so do messages whose peer has not come. What is enqueued goes on.
  virtual void shutdown() noexcept = 0;
};

// What a group has done in main memory and on its devices, together.
Metrics merged_metrics(const Communicator& host, const DeviceCommunicator& devices);
// Of calls on one kind of device ("cpu" or "cuda"), or of all: those on devices stand under process groups of their
// own, "<name>/cuda", since they are numbered apart. Throws Error(kInvalidArgument) for another kind.
std::string merged_record(const Communicator& host, const DeviceCommunicator& devices, const std::string& kind = {});

// On which device of `kind` this address lies; none: on no such device, as far as this process uses any.
std::optional<int> device_of(const std::string& kind, const void* address);

}  // namespace tutti
