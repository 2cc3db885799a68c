// A group of ranks and the collectives among them: the entry to the library.
//
// Thread rule: every member may be called from any thread. Collectives run in the order in which they are issued;
// all ranks must issue the same ones in the same order. Point-to-point calls progress on their own.
//
// Errors: arguments are checked before anything is sent (kInvalidArgument, kUnsupported: the communicator stays
// usable and no sequence number is used), and so it stays where memory is wanting before that (kExhausted; failure() is
// empty then). Any other Error poisons the communicator: later calls raise it again,
// and what is left to do is abort(), destruction, or shrink().
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/call.h"
#include "tutti/config.h"
#include "tutti/error.h"
#include "tutti/group.h"
#include "tutti/store.h"
#include "tutti/user_algorithm.h"
#include "tutti/work.h"

namespace tutti {

struct CommunicatorOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(30);  // more than 0
  Config config;
  std::string name = "tutti";  // for messages and the flight recorder
};

class Communicator : public Group {
 public:
  // Collective over `size` ranks: all call it with the same `id`, unique in the store for the life of the job.
  // Returns when all ranks have joined. Throws Error(kTimeout) naming the ranks that have not.
  static std::shared_ptr<Communicator> create(Store& store, const std::string& id, int rank, int size,
                                              const CommunicatorOptions& options);
  // That it was made with; what is set later does not change them.
  virtual const CommunicatorOptions& options() const noexcept = 0;
  // Ranks that share memory with this one, itself included, ascending.
  virtual const std::vector<int>& host_ranks() const noexcept = 0;
  virtual int host_count() const noexcept = 0;

  // Refuses a call that cannot work (kInvalidArgument, kUnsupported), before anything is sent.
  virtual void check(const Call& call) const = 0;

  // Runs a collective and returns when it has completed here. Of all calls: a zero timeout means the communicator's, a
  // negative one is refused (kInvalidArgument).
  virtual void run(const Call& call, std::chrono::milliseconds timeout = {}) = 0;

  // Gives the communicator algorithms for the calls that follow, in place of those it was given before; an empty set
  // takes them back. All ranks do it between the same calls, with the same algorithms: else the next call raises
  // kMismatch. Waits for queued calls. Throws Error naming an algorithm that cannot run; then nothing has changed.
  virtual void set_algorithms(AlgorithmSet set) = 0;

  // Queues a collective for the progress thread. `keep_alive` is released after completion.
  virtual WorkPtr submit(const Call& call, std::chrono::milliseconds timeout = {},
                         std::shared_ptr<void> keep_alive = nullptr) = 0;

  // Point-to-point: matched by (peer, tag, order). Sizes and dtypes must agree; the receiver checks.
  virtual void send(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                    std::chrono::milliseconds timeout = {}) = 0;
  // `peer` may be kAnySource; returns the sender.
  virtual int recv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                   std::chrono::milliseconds timeout = {}) = 0;
  virtual WorkPtr isend(const void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                        std::chrono::milliseconds timeout = {}, std::shared_ptr<void> keep_alive = nullptr) = 0;
  virtual WorkPtr irecv(void* data, std::size_t count, DataType dtype, int peer, std::uint64_t tag,
                        std::chrono::milliseconds timeout = {}, std::shared_ptr<void> keep_alive = nullptr) = 0;

  // Rank 0 learns which ranks have not arrived within the timeout and raises Error(kTimeout) naming the first, or
  // all of them; the others raise too. Point-to-point underneath: it uses no collective sequence number.
  virtual void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) = 0;

  // Leaves the group in good order: waits for this rank's queued calls (bounded by the timeout), then tells the
  // peers that it left. Later calls raise. The destructor does the same without waiting.
  virtual void shutdown() noexcept = 0;

  // For an interpreter that is about to end, when nothing may be released any more that its calls hold: waits at most
  // `patience` for the queued calls of all groups of this process, then ends those groups that have some left.
  static void finish_all(std::chrono::milliseconds patience) noexcept;

  // A new communicator of the ranks that answer within `timeout`, after failures too; collective among survivors, who
  // form it, each step within as long again (at least 5 s). Ranks keep their order. `members` receives their old ranks.
  virtual std::shared_ptr<Communicator> shrink(Store& store, const std::string& id, std::chrono::milliseconds timeout,
                                               std::vector<int>* members) = 0;

  // Which algorithm a call would take and why, one line a candidate.
  virtual std::string explain(const Call& call) const = 0;
};

}  // namespace tutti
