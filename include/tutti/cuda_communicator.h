// Collectives on CUDA memory, on the caller's streams. The C++ entry for GPUs; knows nothing of torch.
//
// A CudaCommunicator belongs to one rank and one device. All ranks must be on one host (2 to 8 of them, several of them
// on one device if need be; one process a rank, or several ranks as threads of a process). libtutti.so loads
// libtutti_cuda.so when the first one is made.
//
// Streams: run() enqueues one kernel on `stream` and returns; nothing on the host is awaited. The output is complete,
// and the input may be overwritten, when the stream has passed that point. Calls of one communicator run in the order
// of issue, also across streams: a changed stream waits for the call before. A stream may be destroyed as soon as a
// call has been enqueued on it (CudaOptions::lasting_streams). In a stream that is being captured, the call becomes a
// kernel node of the graph; the graph may be replayed any number of times, with other data in the same buffers, as long
// as all ranks replay the same sequence of calls. The caller orders replays and eager calls of one communicator after
// each other (as on one stream); overlap is found and reported.
//
// Thread rule: every member may be called from any thread; calls are ordered by a mutex.
//
// Errors: a call is checked first (kInvalidArgument, kUnsupported: nothing is enqueued). What goes wrong on the device
// (a peer that does not come, another call, abort) ends the kernels, leaves undefined outputs, and is raised by
// failure(), by the next call, and by synchronize(). The communicator is then poisoned for good.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tutti/call.h"
#include "tutti/cuda_memory.h"
#include "tutti/cuda_options.h"
#include "tutti/cuda_serving.h"
#include "tutti/error.h"
#include "tutti/metrics.h"
#include "tutti/store.h"
#include "tutti/user_algorithm.h"

namespace tutti {

// One point-to-point message of a batch.
struct CudaMessage {
  bool send = true;
  void* data = nullptr;
  std::size_t bytes = 0;
  int peer = -1;
  std::uint32_t tag = 0;  // part of what both sides must agree on; messages of a pair match in order
};

class CudaCommunicator {
 public:
  // Collective over `size` ranks, as Communicator::create. Throws Error(kUnsupported) without the plug-in or a GPU, or
  // if the ranks are not on one host.
  static std::shared_ptr<CudaCommunicator> create(std::shared_ptr<Store> store, const std::string& id, int rank,
                                                  int size, const CudaOptions& options);
  virtual ~CudaCommunicator() = default;

  virtual int rank() const noexcept = 0;
  virtual int size() const noexcept = 0;
  virtual int device() const noexcept = 0;

  // Refuses a call that cannot work. The same rules as Communicator::check.
  virtual void check(const Call& call) const = 0;

  // Enqueues a collective. The pointers of `call` are device memory of this rank's device (or memory it can reach).
  // `timeout` is of each of its waits on the GPU; zero means the communicator's, which a captured call always follows.
  // While more than 256 calls are ahead of the GPU, the timeouts of the oldest may be forgotten.
  virtual void run(const Call& call, CudaStream stream, std::chrono::milliseconds timeout = {}) = 0;
  // Which plan run() takes for the call, of those that were given and those of files; 0: none. Asks the selector
  // function, if there is one, so for those who must know before they call: they go on with run_as().
  virtual std::uint64_t plan_for(const Call& call) const = 0;
  // run() by what plan_for() has said of this call.
  virtual void run_as(std::uint64_t plan, const Call& call, CudaStream stream,
                      std::chrono::milliseconds timeout = {}) = 0;

  // Collective: gives the communicator algorithms for the calls that follow, as Communicator::set_algorithms does.
  // Those that are plans get memory on all ranks, up to 16 MB each, for good; what a GPU cannot run is passed over, and
  // so is what is no plan. Ranks compare what they give: if it differs, all throw Error(kMismatch), and nothing has
  // changed. Waits for this rank's calls. Not during a capture.
  virtual void set_algorithms(AlgorithmSet set) = 0;
  // Collective where this communicator has not seen the algorithm yet: gives it memory, so that calls may name it
  // (Call::choice). Throws the same Error(kUnsupported) on all ranks if one of them cannot run it.
  virtual void prepare(const UserAlgorithmPtr& algorithm) = 0;

  // Collective: `bytes` on every rank. `name` is new in this communicator.
  virtual std::shared_ptr<CudaMemory> allocate(const std::string& name, std::size_t bytes) = 0;

  // all_reduce, reduce_scatter and all_gather without copies: input and output lie in `memory`, at the same offsets on
  // all ranks, which the ranks compare. A call that is too small to gain from it, or any other collective, runs as
  // run() does. Between GPUs, copy engines run all_gather and all_to_all of 64 MB and more in all, and the second half
  // of an all_reduce of 128 MB and more; with CudaOptions::algorithm "copy_engine" these, broadcast, gather and scatter
  // of any size. If a call on copy engines fails, its buffers are undefined in whole.
  virtual void run_in(const CudaRegion& memory, const Call& call, CudaStream stream,
                      std::chrono::milliseconds timeout = {}) = 0;

  // Collective: lets run() use the callers' own memory without copies, whoever has allocated it. All ranks give as many
  // ranges of the same sizes, in the same order; the addresses may differ. Not during a capture.
  //
  // It is a promise: where a call's buffer lies in registered memory on one rank, it lies in the same range at the same
  // offset on all ranks. A rank decides by its own pointers; if ranks decide differently, the call ends as kMismatch
  // that says so. What counts is the input and output of an all_reduce, the input of a reduce_scatter, the output of an
  // all_gather, from 1 MB on. Nothing counts while CudaOptions::algorithm forces one, but "copy_engine", which then
  // counts here too.
  //
  // The caller keeps the memory until all ranks have unregistered it or have destroyed their communicators: freeing
  // what a peer maps is undefined. Graphs keep the mappings that they use, not the memory.
  //
  // Throws the same Error on all ranks, and registers nothing, if one of them cannot: kUnsupported says which memory
  // cannot be shared and what to do, kInvalidArgument that the sizes differ.
  virtual std::vector<std::shared_ptr<CudaRegion>> register_memory(const std::vector<CudaRange>& ranges) = 0;
  // Collective: the opposite, for the same regions on all ranks; give up every other share of them first. Waits for
  // this rank's calls, then for all ranks: the memory may be freed afterwards, if no graph uses it.
  virtual void unregister_memory(std::vector<std::shared_ptr<CudaRegion>> regions) = 0;
  // What PortChannel::to_memory and from_memory call a registered range, until it is unregistered: ports put into it
  // and out of it as into memory of allocate(). Throws Error(kInvalidArgument) if `region` is not registered here.
  virtual std::uint32_t port_memory(const CudaRegion& region) = 0;
  // Whether all of [data, data + bytes) lies in one registered range.
  virtual bool is_registered(const void* data, std::size_t bytes) const = 0;
  // Calls that have run without copies so far, captured ones included.
  virtual std::uint64_t direct_calls() const noexcept = 0;

  // Enqueues a batch of sends and receives in any order as one kernel: none of them waits for another one, but those of
  // one pair and direction run in order. Of more than 1008, a kernel has 72 of each pair and direction.
  virtual void exchange(const std::vector<CudaMessage>& messages, CudaStream stream,
                        std::chrono::milliseconds timeout = {}) = 0;
  // What inference engines need: tutti/cuda_serving.h.
  virtual void all_reduce_add_rms_norm(const CudaAddRmsNorm& call, CudaStream stream,
                                       std::chrono::milliseconds timeout = {}) = 0;
  virtual void all_reduce_quantized(const CudaQuantizedAllReduce& call, CudaStream stream,
                                    std::chrono::milliseconds timeout = {}) = 0;
  // A stream of the communicator's own, for callers that have none; it waits for no other one.
  virtual CudaStream own_stream() = 0;
  virtual bool is_capturing(CudaStream stream) const = 0;  // calls on it become parts of a graph now
  // Waits on the host for `stream`, then raises a failure if there is one.
  virtual void synchronize(CudaStream stream) = 0;
  // Waits on the host until what was enqueued has ended, as the destructor does; replays of graphs are not known.
  // abort() ends that wait, from another thread, and failure() may be asked meanwhile.
  virtual void finish() noexcept = 0;

  // What has gone wrong on the device so far. Cheap: reads pinned memory.
  virtual std::optional<Error> failure() const = 0;
  // Ends kernels that wait, here and at the peers, and poisons the communicator.
  virtual void abort(const std::string& reason) noexcept = 0;
  // Of every wait inside a kernel, those of captured graphs included.
  virtual void set_timeout(std::chrono::milliseconds timeout) noexcept = 0;
  // Path of libtutti_cuda.so. Throws Error(kUnsupported) if it is not installed.
  static std::string library();
  // Loads it, as create() does. Throws Error(kUnsupported) if that cannot be done.
  static void load();
  // Names that CudaOptions::algorithm takes.
  static std::vector<std::string> algorithms();
  // Those among them that a tuning table can choose for a collective: kernels on any memory. None for a barrier.
  static std::vector<std::string> algorithms(Collective collective);
  // What a call would run: "ll_one_shot@1x128".
  virtual std::string explain(const Call& call) const = 0;
  // The same with reasons: each plan that might serve the call, and the kernel, a line each.
  virtual std::string candidates(const Call& call) const = 0;
  // What run_in() would run: "copy_engine", "direct@64x512", or as explain() says.
  virtual std::string explain_in(const Call& call) const = 0;
  // How this rank reaches the others and why: "peer memory", or "pinned host memory: device 0 cannot map device 1".
  virtual const std::string& transport() const noexcept = 0;
  // What GPUs the ranks have and how they reach each other, the same on all ranks: "NVIDIA H200, peer memory". What was
  // measured holds for these.
  virtual const std::string& gpus() const noexcept = 0;
  // Counts of what was issued or captured here, and of what the GPU has run; no times. Reads from the GPU.
  virtual Metrics metrics() const = 0;
  virtual void reset_metrics() noexcept = 0;
  // As Communicator::flight_record. A call is scheduled, started or completed as the GPU says now; a captured one stays
  // scheduled. Reads from the GPU.
  virtual std::string flight_record() const = 0;
  // Collectives issued through run() so far (replays of graphs are not counted).
  virtual std::uint64_t sequence() const noexcept = 0;
};

}  // namespace tutti
