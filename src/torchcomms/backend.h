// Tutti as a backend of TorchComms: what torchcomms.new_comm("tutti", device) gives.
//
// Each operation of TorchCommBackend becomes a call of the communicator's group (group.h); arguments that are wrong
// raise before anything is sent, and leave the communicator usable. CPU and CUDA tensors are both taken, whatever the
// device of the communicator: it says what barriers wait for.
//
// Life: init() makes the group, unless reconfigure() is to do it (CommOptions::enable_reconfigure). abort() and any
// failure of a call end it for good; reconfigure() makes another one. finalize() ends it on this rank.
//
// Ownership: shared with TorchComms; works do not hold the communicator. Thread rule: TorchCommBackend's, the caller
// serializes; abort(), isAborted() and the hooks' registration from any thread beside it. In a forked child calls raise
// before they take a lock; abort(), finalize() and the end do nothing.
#pragma once

#include <atomic>
#include <comms/torchcomms/TorchCommBackend.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "torchcomms/group.h"
#include "torchcomms/hints.h"
#include "torchcomms/link.h"
#include "torchcomms/window_group.h"

namespace tutti::torchcomms {

namespace comms = ::torch::comms;
using WorkPtr = c10::intrusive_ptr<comms::TorchWork>;

inline constexpr const char* kBackendName = "tutti";

class Window;

class TorchCommTutti final : public comms::TorchCommBackend {
 public:
  using Tensors = std::vector<at::Tensor>;
  using Splits = std::vector<std::uint64_t>;
  using Milliseconds = std::chrono::milliseconds;

  TorchCommTutti();
  ~TorchCommTutti() override;

  // Life of the communicator (backend.cc).
  // A CUDA device without a number is that of the rank's number, counted round the GPUs that are there. It becomes the
  // current one.
  void init(at::Device device, const std::string& name, const comms::CommOptions& options) override;
  void finalize() override;
  int getRank() const override { return rank_; }
  int getSize() const override { return size_; }
  std::string_view getBackendName() const override { return kBackendName; }
  std::string_view getBackendVersion() const override;
  std::string_view getCommName() const override { return name_; }
  const comms::CommOptions& getOptions() const override { return options_; }
  const at::Device& getDevice() const override { return device_; }
  bool isInitialized() const override { return life_ == Life::kReady && !isAborted(); }
  void setTimeout(Milliseconds timeout) override;
  void setHints(Hints hints) override;
  std::shared_ptr<comms::TorchCommBackend> split(const std::vector<int>& ranks, const std::string& name,
                                                 const comms::CommOptions& options) override;
  bool supportsReconfigure() const override { return true; }
  comms::InitHandle getInitHandle() const override { return handle_; }
  WorkPtr reconfigure(const comms::ReconfigureOptions& options) override;
  bool isAbortSupported() const override { return true; }

  // Failures (failure.cc).
  bool isAborted() const override;
  void abort() override;
  void registerAbortHook(std::int64_t number, comms::AbortHook hook) override;
  void unregisterAbortHook(std::int64_t number) override;

  // Messages (messages.cc).
  WorkPtr send(const at::Tensor& tensor, int peer, bool async, const comms::SendOptions& options) override;
  WorkPtr recv(at::Tensor& tensor, int peer, bool async, const comms::RecvOptions& options) override;
  WorkPtr batch_op_issue(const std::vector<comms::BatchSendRecv::P2POp>& messages, bool async,
                         const comms::BatchP2POptions& options) override;

  // Collectives (collectives.cc).
  WorkPtr broadcast(at::Tensor& tensor, int root, bool async, const comms::BroadcastOptions& options) override;
  WorkPtr all_reduce(at::Tensor& tensor, const comms::ReduceOp& op, bool async,
                     const comms::AllReduceOptions& options) override;
  WorkPtr reduce(const at::Tensor& tensor, int root, const comms::ReduceOp& op, bool async,
                 const comms::ReduceOptions& options) override;
  WorkPtr all_gather(const Tensors& outputs, const at::Tensor& input, bool async,
                     const comms::AllGatherOptions& options) override;
  WorkPtr all_gather_v(const Tensors& outputs, const at::Tensor& input, bool async,
                       const comms::AllGatherOptions& options) override;
  WorkPtr all_gather_single(at::Tensor& output, const at::Tensor& input, bool async,
                            const comms::AllGatherSingleOptions& options) override;
  WorkPtr reduce_scatter(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                         const comms::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_v(at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op, bool async,
                           const comms::ReduceScatterOptions& options) override;
  WorkPtr reduce_scatter_single(at::Tensor& output, const at::Tensor& input, const comms::ReduceOp& op, bool async,
                                const comms::ReduceScatterSingleOptions& options) override;
  WorkPtr all_to_all_single(at::Tensor& output, const at::Tensor& input, bool async,
                            const comms::AllToAllSingleOptions& options) override;
  WorkPtr all_to_all_v_single(at::Tensor& output, const at::Tensor& input, const Splits& output_splits,
                              const Splits& input_splits, bool async,
                              const comms::AllToAllvSingleOptions& options) override;
  WorkPtr all_to_all(const Tensors& outputs, const Tensors& inputs, bool async,
                     const comms::AllToAllOptions& options) override;
  WorkPtr barrier(bool async, const comms::BarrierOptions& options) override;
  WorkPtr scatter(at::Tensor& output, const Tensors& inputs, int root, bool async,
                  const comms::ScatterOptions& options) override;
  WorkPtr gather(const Tensors& outputs, const at::Tensor& input, int root, bool async,
                 const comms::GatherOptions& options) override;
  WorkPtr gather_single(at::Tensor& output, const at::Tensor& input, int root, bool async,
                        const comms::GatherSingleOptions& options) override;

  // A gather into the same output again and again. The handle owns a reference to the output.
  AllGatherPHandle all_gather_p_init(at::Tensor& output, const comms::AllGatherPInitOptions& options) override;
  WorkPtr all_gather_p_exec(AllGatherPHandle handle, const at::Tensor& input, bool async,
                            const comms::AllGatherPExecOptions& options) override;
  void all_gather_p_free(AllGatherPHandle handle) override;

  // Held until deregistered. This rank's word alone makes no call faster: memory that all ranks map is made by
  // tutti.empty, or registered by tutti.register_tensors together.
  void tensor_register(const at::Tensor& tensor) override;
  void tensor_deregister(const at::Tensor& tensor) override;

  // One-sided calls (window.h). Collective if there is a tensor.
  bool supportsWindow() const override { return true; }
  std::shared_ptr<comms::TorchCommWindow> new_window(const std::optional<at::Tensor>& tensor) override;

 private:
  friend class Link;
  friend class Window;
  enum class Life { kNew, kAwaitsReconfigure, kReady, kFinalized };
  using CallPtr = c10::intrusive_ptr<c10d::Work>;
  struct Persistent {
    at::Tensor output;
  };

  // What every operation's options have.
  struct Given {
    Milliseconds timeout;
    const Hints& hints;
  };
  template <typename Options>
  static Given given(const Options& options) {
    return {options.timeout, options.hints};
  }

  // Runs `issue(group)`, which returns a c10d::Work, and makes a TorchWork of it. `limit`: of waits, for calls that
  // c10d gives no time limit of their own; zero for the others, which end in time by themselves.
  WorkPtr run(const char* operation, const at::Tensor* tensor, bool async, const Given& options,
              const std::function<CallPtr(c10d::Backend&)>& issue, Milliseconds limit = {});
  c10d::Backend& ready(const char* operation) const;
  [[noreturn]] void refuse(const std::string& operation, const std::string& reason) const;
  void refuse_if(const std::string& operation, const std::string& reason) const;
  // Before any lock: at the fork a thread of the parent's may have had it.
  void refuse_in_child(const char* operation) const;
  std::string refusal(const char* operation, const std::string& reason) const;
  void take_hints(Hints hints);
  void choose_device(int rank);
  void offer_allocator() const;
  int checked_rank(int rank, const char* operation, const char* which) const;
  c10d::ReduceOp reduction(const comms::ReduceOp& op, const char* operation) const;
  WorkPtr transfer(const char* operation, at::Tensor tensor, int peer, int tag, bool async, const Given& options,
                   bool receive);
  WorkPtr gather_lists(const char* operation, const Tensors& outputs, const at::Tensor& input, bool async,
                       const Given& options);
  WorkPtr scatter_lists(const char* operation, at::Tensor& output, const Tensors& inputs, const comms::ReduceOp& op,
                        bool async, const Given& options);
  // Of generation `number` of the group; SUCCESS if that is no longer there.
  c10d::ErrorType failure_of(std::uint64_t number) const;
  c10d::ErrorType failure() const;
  template <class See>  // of c10d::Backend
  void each_of_windows(const See& see) const;
  void run_hooks_of_failure();
  void end_with_windows();
  void run_hooks();
  // With a reason in `refused`, as refusal() gives it, all ranks raise that.
  void make(int rank, int size, const std::string& key, Milliseconds timeout, bool anew, Hints hints,
            const std::string& refused);
  void meets(bool now);
  Group current_group() const;
  // The group of the windows, made when the first is registered, and the number of the one that is registered next.
  std::pair<std::shared_ptr<WindowGroup>, std::int64_t> next_window();
  // The group of a window on GPUs: one that such a window has given back, or a new one. Collective.
  std::shared_ptr<WindowGroup> gpu_window_group();
  // `again`: the next window may have it; else it ends.
  void give_back(std::shared_ptr<WindowGroup> of_gpus, bool again);
  std::shared_ptr<WindowGroup> make_window_group(const std::string& name, Milliseconds timeout);
  using WindowGroups = std::vector<std::shared_ptr<WindowGroup>>;
  WindowGroups take_windows();
  static void end_windows(const WindowGroups& all);
  void end_windows();

  at::Device device_{at::kCPU};
  at::Tensor nothing_;  // a zero on the GPU: what barriers there sum
  std::string name_;
  std::string key_;  // names the group in the store
  comms::CommOptions options_;
  StorePtr given_;          // by the user, maybe to the communicator that was split; null: the job's
  StorePtr parents_store_;  // of the communicator that was split, until the group has formed in it; or null
  Group split_from_;        // until the group has formed in it; or null
  std::vector<int> among_;  // the ranks of that
  StorePtr store_;          // of the group at hand: its parts meet there
  std::string handle_;      // of this process, for reconfigure()
  Life life_ = Life::kNew;
  int rank_ = -1;
  int size_ = -1;
  std::set<std::int64_t> uuids_;  // of reconfigure(), used up
  std::vector<at::Tensor> registered_;
  std::set<void*> persistent_;  // handles of all_gather_p_init
  const std::shared_ptr<Link> link_;

  // By abort() on this rank. release there, acquire where it is asked for: who sees it set sees what went before.
  std::atomic<bool> aborted_{false};
  std::atomic<bool> failure_aborts_{false};  // the process; relaxed: says nothing of other memory
  bool hooks_have_run_ = false;              // for this group; guarded by the link's lock of hooks
  std::uint64_t watched_ = 0;                // by the watch, for failures
  mutable std::mutex mutex_;                 // guards the groups and their number against threads beside the caller's
  Group group_;
  bool finalized_ = false;                     // what ends from then on has not failed; changed by the caller alone
  bool meets_ = false;                         // others may have met already, and have given up the group at hand
  std::uint64_t generation_ = 0;               // of the group
  std::shared_ptr<WindowGroup> window_group_;  // null before the first window
  std::vector<std::shared_ptr<WindowGroup>> gpu_window_groups_;
  std::vector<std::shared_ptr<WindowGroup>> idle_;  // of these, in the same order on all ranks; the caller's alone
  std::int64_t gpu_window_groups_made_ = 0;         // likewise
  std::int64_t windows_ = 0;
};

}  // namespace tutti::torchcomms
