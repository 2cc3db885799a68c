// Collectives on CUDA memory, on the caller's streams. The C++ entry for GPUs; knows nothing of torch.
//
// A CudaCommunicator belongs to one rank and one device. All ranks must be on one host (2 to 8 of them, several of them
// on one device if need be; one process a rank, or several ranks as threads of a process). libtutti.so loads
// libtutti_cuda.so when the first one is made.
//
// Streams: run() enqueues one kernel on `stream`. Calls of one communicator run in the order of issue, also across
// streams: a changed stream waits for the call before. A stream may be destroyed as soon as a call has been enqueued on
// it (DeviceOptions::lasting_streams). In a stream that is being captured, the call becomes a kernel node of the graph;
// the graph may be replayed any number of times, with other data in the same buffers, as long as all ranks replay the
// same sequence of calls. The caller orders replays and eager calls of one communicator after each other (as on one
// stream); overlap is found and reported.
//
// Memory: where a call's buffers lie in memory that all ranks have registered, or have got from allocate(), the call
// copies nothing. It is a promise: where a buffer lies so on one rank, it lies in the same range at the same offset on
// all ranks. A rank decides by its own pointers; if ranks decide differently, the call ends as kMismatch that says so.
// What counts is the input and output of an all_reduce, the input of a reduce_scatter, the output of an all_gather,
// from 1 MB on. Between GPUs, in memory of allocate(), copy engines run all_gather and all_to_all of 64 MB and more in
// all, and the second half of an all_reduce of 128 MB and more; if TUTTI_CUDA_ALGORITHM is "copy_engine" these,
// broadcast, gather and scatter of any size, and the former three in registered memory too. If a call on copy engines
// fails, its buffers are undefined in whole. Nothing counts while another algorithm is forced. Graphs keep the mappings
// that they use, not the memory; who has registered memory keeps it until all ranks have unregistered it or have
// destroyed their communicators: freeing what a peer maps is undefined.
//
// Messages: of more than 1008 in a batch, a kernel has 72 of each pair and direction.
//
// Plans of set_algorithms() and prepare() get memory on all ranks, up to 16 MB each, for good; what a GPU cannot run is
// passed over, and so is what is no plan. Both wait for this rank's calls.
//
// Its options: messages_only takes 4 MB of device memory, not 45 a rank. While more than 256 calls are ahead of the
// GPU, the timeouts of the oldest may be forgotten. metrics() counts collectives that the GPU has run; in
// flight_record() a call is scheduled, started or completed as the GPU says now, and a captured one stays scheduled.
// sequence() counts no replays of graphs. abort() ends kernels that wait, here and at the peers.
//
// Thread rule: every member may be called from any thread; calls are ordered by a mutex.
//
// Errors: on the device, a peer that does not come, another call or abort() ends the kernels and leaves undefined
// outputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tutti/cuda/memory.h"
#include "tutti/store.h"
#include "tutti/stream_communicator.h"

namespace tutti {

// CUDA's names for what all devices have.
using CudaStream = DeviceStream;  // cudaStream_t, without its header. Null is the legacy default stream.
using CudaOptions = DeviceOptions;
using CudaMessage = DeviceMessage;

class CudaCommunicator : public StreamCommunicator {
 public:
  // Collective over `size` ranks, as Communicator::create. Throws Error(kUnsupported) without the plug-in or a GPU, or
  // if the ranks are not on one host.
  static std::shared_ptr<CudaCommunicator> create(std::shared_ptr<Store> store, const std::string& id, int rank,
                                                  int size, const CudaOptions& options);

  // Which plan run() takes for the call, of those that were given and those of files; 0: none. Asks the selector
  // function, if there is one, so for those who must know before they call: they go on with run_as().
  virtual std::uint64_t plan_for(const Call& call) const = 0;
  // run() by what plan_for() has said of this call.
  virtual void run_as(std::uint64_t plan, const Call& call, CudaStream stream,
                      std::chrono::milliseconds timeout = {}) = 0;

  // Collective: `bytes` on every rank, for collectives without copies and for kernels of one's own. `name` is new in
  // this communicator. It is registered: see below.
  virtual std::shared_ptr<CudaMemory> allocate(const std::string& name, std::size_t bytes) = 0;
  // What PortChannel::to_memory and from_memory call a registered range, until it is unregistered: ports put into it
  // and out of it as into memory of allocate(). Throws Error(kInvalidArgument) if `region` is not registered here.
  virtual std::uint32_t port_memory(const CudaRegion& region) = 0;

  // Waits on the host until what was enqueued has ended, as the destructor does; replays of graphs are not known.
  // abort() ends that wait, from another thread, and failure() may be asked meanwhile.
  virtual void finish() noexcept = 0;

  // How this rank reaches the others and why: "peer memory", or "pinned host memory: device 0 cannot map device 1".
  virtual const std::string& transport() const noexcept = 0;
  // What GPUs the ranks have and how they reach each other, the same on all ranks: "NVIDIA H200, peer memory". What was
  // measured holds for these.
  virtual const std::string& gpus() const noexcept = 0;

  // Path of libtutti_cuda.so. Throws Error(kUnsupported) if it is not installed.
  static std::string library();
  // Loads it, as create() does. Throws Error(kUnsupported) if that cannot be done.
  static void load();
  // Names that TUTTI_CUDA_ALGORITHM takes.
  static std::vector<std::string> algorithms();
  // Those among them that a tuning table can choose for a collective: kernels on any memory. None for a barrier.
  static std::vector<std::string> algorithms(Collective collective);
};

}  // namespace tutti
