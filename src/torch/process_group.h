// Tutti as a c10d backend: what `torch.distributed` calls for every process group named "tutti".
//
// The collectives of c10d::Backend are described as tutti::Call and given to the group's Communicator: a synchronous
// one runs on the calling thread (the Python bindings have released the GIL by then), an asynchronous one is queued
// with its tensors kept alive. Calls on CUDA tensors go to its DeviceCommunicator (cuda_side.h), which enqueues them on
// streams. Argument errors are raised before anything is sent.
//
// Ownership: held by torch's ProcessGroup. Thread rule: all members from any thread.
#pragma once

#include <c10/util/FunctionRef.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <unordered_map>

#include "aten/cuda_side.h"
#include "aten/failing_group.h"
#include "aten/group_buffers.h"
#include "torch/work.h"
#include "tutti/communicator.h"

namespace tutti::face {

class Prepared;
struct CudaBatch;

inline constexpr const char* kBackendName = "tutti";

struct GroupOptions final : c10d::Backend::Options {
  explicit GroupOptions(std::chrono::milliseconds group_timeout = kBackendDefaultTimeout)
      : c10d::Backend::Options(kBackendName, group_timeout) {}
  std::string algorithm;         // as TUTTI_ALGORITHM, for this group; empty: the environment's
  bool overlap_futures = false;  // see work.h
  int max_blocks = 0;            // as TUTTI_CUDA_MAX_BLOCKS, for this group; 0: the environment's
  std::string refused;           // why this rank cannot take part, which all ranks are told; empty: it can
};

// What a call is to torch: its profiler title and kind.
struct Event {
  const char* title;
  c10d::OpType op;
};

class ProcessGroupTutti final : public c10d::Backend, public FailingGroup {
 public:
  using WorkList = std::vector<C10dWorkPtr>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;
  using Milliseconds = std::chrono::milliseconds;

  // Collective over the ranks of the group; `id` is unique in the store for the life of the job.
  ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const std::string& id,
                    const c10::intrusive_ptr<GroupOptions>& options);
  // Over a communicator that exists.
  ProcessGroupTutti(const c10::intrusive_ptr<c10d::Store>& store, std::shared_ptr<Communicator> communicator,
                    const std::string& id, const c10::intrusive_ptr<GroupOptions>& options);
  ~ProcessGroupTutti() override;

  const std::string getBackendName() const override { return kBackendName; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  Communicator& communicator() const noexcept { return *communicator_; }
  DeviceCommunicator& devices() const noexcept { return cuda_.devices(); }
  CudaSide& cuda() noexcept { return cuda_; }

  bool supportsSplitting() const override { return true; }
  bool supportsCoalescing() const override { return true; }
  bool supportsShrinking() const override { return true; }
  bool supportsTensorAlloc(c10::DeviceIndex /*device*/) override { return true; }

  // Collectives (collectives.cc, gathering.cc).
  C10dWorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override;
  C10dWorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  // Out of place, which c10d has no call for. The same shape and dtype; not the same memory.
  C10dWorkPtr allreduce_into(at::Tensor& output, const at::Tensor& input, const c10d::AllreduceOptions& options);
  C10dWorkPtr allreduce_sparse(Tensors& tensors, const c10d::AllreduceOptions& options) override;
  C10dWorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override;
  C10dWorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override;
  C10dWorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override;
  C10dWorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override;
  C10dWorkPtr allgather_coalesced(TensorLists& outputs, Tensors& inputs,
                                  const c10d::AllgatherOptions& options) override;
  C10dWorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::AllgatherOptions& options) override;
  C10dWorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& options) override;
  C10dWorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& options) override;
  C10dWorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions& options) override;
  C10dWorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                   const c10d::ReduceScatterOptions& options) override;
  C10dWorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                              const c10d::ReduceScatterOptions& options) override;
  C10dWorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                            std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& options) override;
  C10dWorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override;
  C10dWorkPtr barrier(const c10d::BarrierOptions& options) override;
  void monitoredBarrier(const c10d::BarrierOptions& options, bool wait_all_ranks) override;

  // Point-to-point (point_to_point.cc, cuda_issue.cc).
  C10dWorkPtr send(Tensors& tensors, int destination, int tag) override;
  C10dWorkPtr recv(Tensors& tensors, int source, int tag) override;
  C10dWorkPtr recvAnysource(Tensors& tensors, int tag) override;
  void startCoalescing() override;
  C10dWorkPtr endCoalescing() override;

  void eagerConnectSingleDevice(at::Device device) override;

  // Life of the group (process_group.cc).
  void setSequenceNumberForGroup() override {}  // the communicator counts from its creation
  uint64_t getSequenceNumberForGroup() override { return communicator_->sequence() + devices().sequence(); }
  void setTimeout(Milliseconds timeout) override;
  // As Communicator::set_algorithms, for CUDA tensors too.
  void set_algorithms(const AlgorithmSet& set);
  std::optional<Error> failure() const override;
  c10d::ErrorType getError() override;
  // Of calls on CPU and on CUDA tensors.
  Metrics metrics() const;
  void reset_metrics() noexcept;
  // Of calls on tensors of one kind, "cpu" or "cuda", or of all.
  std::string flight_record(const std::string& kind) const { return merged_record(*communicator_, devices(), kind); }
  void abort() override { abort_because("ProcessGroup.abort()"); }
  void abort_because(const std::string& reason) noexcept override;
  void shutdown() override;
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // A group of ranks of this one, which are all that call it: in messages of this one, and over the store only where
  // this one has failed; without a store (null) that is raised. `name` need not be of one group alone.
  c10::intrusive_ptr<ProcessGroupTutti> make_part(const c10::intrusive_ptr<c10d::Store>& store,
                                                  const std::vector<int>& ranks, const std::string& name,
                                                  const c10::intrusive_ptr<GroupOptions>& options);
  // In place of it: tells the others that this rank had not even the memory to begin.
  void tell_want_of_part(const std::vector<int>& ranks, const std::string& name);
  c10::intrusive_ptr<c10d::Backend> merge(const c10::intrusive_ptr<c10d::Store>& store,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& options, const int& rank,
                                          const int& size) override;
  c10::intrusive_ptr<c10d::Backend> shrink(const std::vector<int64_t>& ranks_to_exclude, int flags,
                                           const c10::intrusive_ptr<c10d::Backend::Options>& options) override;
  // A group of the ranks that answer within `timeout`, and their ranks in this one.
  std::pair<c10::intrusive_ptr<ProcessGroupTutti>, std::vector<int>> shrink_to_survivors(Milliseconds timeout);

  std::shared_ptr<c10::Allocator> getMemAllocator() override;
  // Memory that all ranks map, where there is any: of CPU tensors by this rank alone, of CUDA tensors collectively
  // (group_buffers.h), from PyTorch's allocator unless `source` gives other memory.
  at::Tensor allocateTensor(long size, at::TensorOptions options) override;
  at::Tensor allocate_with(long size, const at::TensorOptions& options, GroupBuffers::Source source);

 private:
  using Batch = std::vector<std::unique_ptr<Prepared>>;

  // A message on a CPU tensor, described; post() sends it.
  struct Message {
    c10::intrusive_ptr<AsyncWork> work;
    std::shared_ptr<Prepared> prepared;
    void* memory;
    int peer, tag;
    bool receive;
  };
  // What a thread has issued since startCoalescing.
  struct Coalesced {
    WorkList works;                            // of messages too
    std::vector<Message> messages;             // on CPU tensors, not yet sent
    std::shared_ptr<CudaBatch> cuda_messages;  // null without
    std::exception_ptr refused;                // what is wrong with a message: nothing is sent
  };

  // Issues one call that `build(Prepared&)` describes; `outputs` are what Work and Future give back.
  template <typename Build>
  C10dWorkPtr issue(const Event& event, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs, bool async,
                    Milliseconds timeout, Build&& build);
  // Issues `count` calls as one work; `build(i, Prepared&)` describes each.
  template <typename Build>
  C10dWorkPtr issue_many(const Event& event, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs,
                         bool async, Milliseconds timeout, std::size_t count, Build&& build);
  C10dWorkPtr run_batch(const Event& event, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs,
                        Batch batch, Milliseconds timeout);
  C10dWorkPtr submit_batch(const Event& event, at::ArrayRef<at::Tensor> inputs, at::ArrayRef<at::Tensor> outputs,
                           Batch batch, Milliseconds timeout);
  C10dWorkPtr run_sparse(const at::Tensor& tensor, const c10d::AllreduceOptions& options);

  // The same on CUDA tensors (cuda_issue.cc).
  C10dWorkPtr issue_on_cuda(c10::Device device, const Event& event, at::ArrayRef<at::Tensor> inputs,
                            at::ArrayRef<at::Tensor> outputs, bool async, Milliseconds timeout, std::size_t count,
                            c10::function_ref<void(std::size_t, Prepared&)> build);
  C10dWorkPtr transfer_on_cuda(const Event& event, const at::Tensor& tensor, int peer, int tag, bool receive);
  C10dWorkPtr end_cuda_batch(CudaBatch& batch);
  // What this thread collects between startCoalescing and endCoalescing; null outside.
  CudaBatch* open_cuda_batch(c10::Device device);
  // Waits on the host for the current stream of the GPU on which the group has made collectives, if it has.
  void drain_cuda();
  void run_reported(const Event& event, at::ArrayRef<at::Tensor> inputs, const Call& call, Milliseconds timeout);
  void run_here(const Call& call, Milliseconds timeout);

  C10dWorkPtr transfer(const Event& event, Tensors& tensors, int peer, int tag, bool receive);
  Message describe_message(const Event& event, const at::Tensor& tensor, int peer, int tag, bool receive);
  void post(const Message& message);
  // This thread's batch, between startCoalescing and endCoalescing; null outside. Only its thread ends it.
  Coalesced* open_batch();
  bool in_childs_batch() const;
  void captured(const C10dWorkPtr& work);
  int checked_root(int64_t root, const char* call) const;
  void refuse_without_store() const;
  // As make_part(), with what may find no memory made where its want is told.
  c10::intrusive_ptr<ProcessGroupTutti> make_named_part(
      const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
      const std::function<std::string()>& name, const std::function<c10::intrusive_ptr<GroupOptions>()>& options);
  // Of a child, and in it how many of its kind there have been.
  std::string next_id(const std::string& kind, const std::string& shown);
  std::string next_id(const std::string& kind) { return next_id(kind, kind); }
  // Counted by members: other ranks do not take part. Ranks whose lists differ come to the same id.
  std::string next_part(const std::string& name, const std::vector<int>& ranks);
  c10::intrusive_ptr<GroupOptions> options_for(const c10::intrusive_ptr<c10d::Backend::Options>& options) const;

  const c10::intrusive_ptr<c10d::Store> store_;  // null in a part that was made without
  const std::string id_;
  const c10::intrusive_ptr<GroupOptions> options_;
  const std::shared_ptr<Communicator> communicator_;

  CudaSide cuda_;
  GroupBuffers buffers_;  // of cuda_: goes before it

  std::mutex mutex_;                        // guards the members below
  std::map<std::string, int> generations_;  // children made so far, by kind
  std::unordered_map<std::thread::id, Coalesced> coalescing_;
  std::atomic<int> coalescing_threads_{0};  // relaxed: a thread only looks for what it wrote itself
  // The thread of a forked child that is in a batch, which will be refused when it ends.
  std::atomic<std::thread::id> childs_batch_{};
};

}  // namespace tutti::face
