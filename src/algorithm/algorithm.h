// What a collective algorithm is to the rest of the library.
//
// An algorithm sees the host's shared memory (HostChannel) or messages (MessagePort), never a transport. It is
// stateless and shared by all communicators; what it needs between calls lies in the channels. Thread rule: const
// members only.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "algorithm/call_memory.h"
#include "algorithm/group_place.h"
#include "algorithm/shm/shared_writer.h"
#include "base/clock.h"
#include "base/outcome.h"
#include "channel/call_record.h"
#include "channel/host_channel.h"
#include "channel/message_port.h"
#include "tutti/call.h"

namespace tutti {

// What the choice of an algorithm may depend on: only what all ranks know equally.
struct CallShape {
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kByte;
  ReduceOp op = ReduceOp::kSum;
  std::size_t bytes = 0;  // of one rank's block; of uneven calls the largest block of any rank, once announced
  int ranks = 1;
  int hosts = 1;
  bool uneven = false;
  bool crowded = false;       // more ranks on the host than cores
  bool mapped_input = false;  // all ranks said so; known only once announced
  bool mapped_output = false;
  bool reads_across = false;  // the ranks of the host read each other's memory by the kernel; as `mapped_input`
  int root = -1;
  bool announced = false;  // all ranks' announcements of this call have been verified
};

// What a rank has of the call under way; the communicator's, from call to call. Memory is kept, writers learn.
struct CallState {
  CallMemory memory;
  SharedWriter slot_writer, stage_writer;  // apart: sizes and reuse differ, and with them the better way to store
  Deadline deadline;
  CallRecord record;      // this rank's own, complete
  std::string detail;     // set by plans that time out: who waits where
  CallRecord mismatched;  // on kMismatch, set where there are several hosts: what the peer said ...
  CallRecord compared;    // ... and, if that was another call of this rank's than the current one, which; else empty
};

// What an algorithm sees of a call: among which ranks it runs and by what they reach each other, and the call's state.
struct CallContext {
  explicit CallContext(CallState& call) noexcept
      : memory(call.memory),
        slot_writer(call.slot_writer),
        stage_writer(call.stage_writer),
        deadline(call.deadline),
        record(call.record),
        detail(call.detail),
        mismatched(call.mismatched),
        compared(call.compared) {}

  // What algorithms of a host see, of a part of the call among the ranks of this one: ranks are places. This rank must
  // not be alone there.
  CallContext on_host() const noexcept {
    CallContext part = *this;
    part.rank = hosts->place();
    part.size = hosts->host->ranks();
    part.host = hosts->host;
    return part;
  }

  int rank = 0;
  int size = 1;
  HostChannel* host = nullptr;        // when all ranks are on one host and there is more than one
  const GroupPlace* hosts = nullptr;  // when the ranks are on several hosts
  MessagePort* port = nullptr;
  // Algorithms over messages run among these ranks of the group, ascending, which `rank` and `size` then count; null:
  // among all. `watched`: a rank beyond them whose first message would show that it makes another call; -1 for none.
  const int* members = nullptr;
  int watched = -1;
  CallMemory& memory;
  SharedWriter &slot_writer, &stage_writer;
  Deadline& deadline;
  CallRecord& record;
  std::string& detail;
  CallRecord &mismatched, &compared;
};

class Algorithm {
 public:
  virtual ~Algorithm() = default;

  virtual std::string_view name() const noexcept = 0;
  virtual Collective collective() const noexcept = 0;
  // One sentence on how it works, for `tutti explain`.
  virtual std::string_view summary() const noexcept = 0;

  // Null if it can run a call of this shape, else the reason why not: "needs all ranks on one host".
  virtual const char* refusal(const CallShape& shape) const noexcept = 0;

  // True if run() announces the call itself. Otherwise the communicator has announced it, and verified the
  // announcements of all ranks, before run().
  virtual bool announces() const noexcept { return false; }

  // Bytes of context.memory that run() takes. The context is the group's, between calls: any thread asks.
  virtual std::size_t memory(const Call& /*call*/, const CallContext& /*context*/) const noexcept { return 0; }

  // Runs the call. On anything but kOk no memory of the call is touched by this rank any more.
  virtual Outcome run(const Call& call, CallContext& context) const noexcept = 0;
};

}  // namespace tutti
