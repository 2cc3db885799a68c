// The communicator behind include/tutti/cuda/communicator.h, in libtutti_cuda.so.
//
// A call is: check, choose, launch. The host waits for nothing. What the device needs between calls lies in device
// memory (DeviceWorld), so that a captured launch can be replayed.
//
// Locks: mutex_ guards everything below it, and is held while a kernel is launched: when the device's queue is full,
// that takes until a kernel ends, and while finish() waits for kernels. So whoever wants to know what hangs, or to end
// it, never takes it: abort() stores its word first, and failure(), flight_record() and metrics() read what has locks
// of its own (reason_mutex_, the log's, the registrations'), all of them leaves.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <optional>

#include "algorithm/cuda/choice.h"
#include "algorithm/cuda/launch_args.h"
#include "algorithm/cuda/norm_launch.h"
#include "algorithm/plan/plan_files.h"
#include "algorithm/tuning/tuned.h"
#include "base/log.h"
#include "channel/call_record.h"
#include "channel/cuda/gpu_group.h"
#include "communicator/call_parts.h"
#include "communicator/cuda/call_board.h"
#include "communicator/cuda/call_log.h"
#include "communicator/cuda/copy_streams.h"
#include "communicator/cuda/device_plans.h"
#include "communicator/cuda/own_stream.h"
#include "communicator/cuda/quiet_device.h"
#include "communicator/cuda/registrations.h"
#include "communicator/cuda/stream_order.h"
#include "communicator/cuda/tuned_calls.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda {

// Compiled with the library, or loaded.
struct Kernel {
  Kernel(const void* compiled) : symbol(compiled) {}
  Kernel(CUfunction loaded) : function(loaded) {}
  const void* symbol = nullptr;
  CUfunction function = nullptr;
  bool together = false;  // its blocks wait for each other: DevicePlans::together()
  int cluster = 1;        // blocks of a cluster; the grid has so many times as many blocks as the call
  bool early = false;     // it begins with await_preceding()
};

// A number for a choice: part of what ranks compare.
std::uint32_t number_of(const Choice& choice) noexcept;

class CudaCommunicatorImpl final : public CudaCommunicator, private Serving {
 public:
  // `first_sequence`: where the device begins to count; tests begin near the wrap of a flag.
  CudaCommunicatorImpl(const BootstrapPtr& bootstrap, const CudaOptions& options, int device,
                       std::uint64_t first_sequence);
  ~CudaCommunicatorImpl() override;

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return options_.name; }
  int device() const noexcept override { return group_->device(); }
  void check(const Call& call) const override;
  void run(const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override;
  std::uint64_t plan_for(const Call& call) const override;
  void run_as(std::uint64_t plan, const Call& call, CudaStream stream, std::chrono::milliseconds timeout) override;
  void set_algorithms(AlgorithmSet set) override;
  void prepare(const UserAlgorithmPtr& algorithm) override;
  std::shared_ptr<CudaMemory> allocate(const std::string& name, std::size_t bytes) override;
  std::vector<std::shared_ptr<CudaRegion>> register_memory(const std::vector<CudaRange>& ranges) override;
  void unregister_memory(std::vector<std::shared_ptr<CudaRegion>> regions) override;
  std::uint32_t port_memory(const CudaRegion& region) override;
  bool is_registered(const void* data, std::size_t bytes) const override;
  std::uint64_t direct_calls() const noexcept override;
  void exchange(const std::vector<CudaMessage>& messages, CudaStream stream,
                std::chrono::milliseconds timeout) override;
  Serving* serving() noexcept override { return this; }
  CudaStream own_stream() override { return own_stream_.get(); }
  bool is_capturing(CudaStream stream) const override;
  void synchronize(CudaStream stream) override;
  void finish() noexcept override;
  std::optional<Error> failure() const override;
  void abort(const std::string& reason) noexcept override;
  void follow(std::function<std::optional<Error>()> lost) override;
  void look() noexcept override;
  std::chrono::milliseconds timeout() const noexcept override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::string explain(const Call& call) const override;
  std::string candidates(const Call& call) const override;
  const std::string& transport() const noexcept override { return group_->transport(); }
  const std::string& gpus() const noexcept override { return group_->gpus(); }
  Metrics metrics() const override;
  void reset_metrics() noexcept override;
  std::string flight_record() const override;
  std::uint64_t sequence() const noexcept override;

 private:
  static constexpr int kDirectWorkers = 512;  // of each block of a kernel without copies

  // Serving
  void all_reduce_add_rms_norm(const AddRmsNorm& call, CudaStream stream, std::chrono::milliseconds timeout) override;
  void all_reduce_quantized(const QuantizedAllReduce& call, CudaStream stream,
                            std::chrono::milliseconds timeout) override;

  void require_collectives() const;
  CudaShape shape_of(const Call& call) const noexcept;
  // `choice`: how it runs; `plan`: the name of the plan that runs it, if one does.
  CallRecord next_record(const Call& call, std::uint32_t choice, std::string_view plan = {});
  // The fingerprint of `record`, run in this way; peers can look it up.
  std::uint32_t post(CallRecord record, std::uint32_t choice);
  void log(const Call& call, const CallRecord& record, std::string_view algorithm, const Launched& how);
  std::optional<Error> current_failure() const;
  std::optional<Error> lost_rank(bool known_only) const;
  void throw_if_failed() const;
  // Under mutex_: none of its kernels is under way.
  bool idle() const noexcept;
  // Under mutex_: the call as its kind is run, by `plan` if there is one.
  void issue(const Call& call, const TablePlan* plan, cudaStream_t stream, std::chrono::milliseconds timeout);
  void run_collective(const Call& call, cudaStream_t stream);
  // What run_collective() does when the choice is made and announced.
  Launched launch_collective(const Call& call, const Choice& choice, std::uint32_t fingerprint, cudaStream_t stream);
  Launched launch_norm(const AddRmsNorm& call, NormLaunch& norm, std::uint32_t fingerprint, cudaStream_t stream);
  // plan_calls.cc
  CallShape plan_shape_of(const Call& call) const noexcept;
  // Collective: all ranks offer the same plans, of which the new ones get memory. What was offered, by identity.
  std::vector<std::uint64_t> admit(const std::vector<UserAlgorithmPtr>& algorithms, bool chooses);
  // The plan that the call takes; null: none. `lock` holds mutex_, and is given up while a function of the program
  // chooses.
  const TablePlan* plan_of(const Call& call, std::unique_lock<std::mutex>& lock) const;
  // Takes what ranks have measured, if all have the same table. Part of the constructor.
  void use_tuning();
  // What the table says of the call; null: nothing.
  const TunedStep* tuned(const Call& call) const noexcept;
  // Whether TUTTI_CUDA_ALGORITHM is why the call runs as it does.
  bool is_forced(const Call& call) const;
  // The kernel of a call that runs no plan.
  Choice kernel_for(const Call& call) const;
  void run_plan(const Call& call, const TablePlan& plan, cudaStream_t stream);
  void run_kernel(const Call& call, const TablePlan& plan, cudaStream_t stream);
  PlanRoom plan_room(int workers) const;
  OfferingRank offering() const;
  CompiledPlans::Options compile_options() const;
  void load_compiled(const PlannedCall& planned, bool may_load);
  std::optional<DirectPlace> plan_place(const Call& call, const TablePlan& plan) const;
  // Whether run() looks for registered memory.
  bool takes_registered() const noexcept { return !forced_ || forced_->copy_engine; }
  // Where a call that copies nothing has its buffers; none: it is another one.
  std::optional<DirectPlace> direct_place(const Call& call) const;
  void run_direct(const Call& call, const DirectPlace& place, cudaStream_t stream);
  void keep_for_graph(const DirectPlace& place, cudaStream_t stream);
  void run_direct_kernel(const Call& call, const DirectPlace& place, std::byte* const* inputs,
                         std::byte* const* outputs, cudaStream_t stream);
  void run_messages(const Call& call, cudaStream_t stream);
  void copy_own_part(std::byte* to, const std::byte* from, std::size_t bytes, cudaStream_t stream);
  std::string prepare_copies();
  std::string problem_with(const std::vector<CudaRange>& ranges) const;
  void forget_port_memory(const CudaRegion& region);
  // copy_engine_calls.cc
  bool uses_copy_engines(const Call& call) const;
  void run_by_copy_engines(const Call& call, const DirectPlace& place, std::byte* const* inputs,
                           std::byte* const* outputs, cudaStream_t stream);
  Launched meet_ranks(std::uint32_t fingerprint, cudaStream_t stream);
  int direct_blocks() const noexcept;
  Launched launch_messages(const std::vector<MessageRequest>& requests, cudaStream_t stream);
  // Args has a ticket. `tickets`: of a call of several kernels, of which this is the last or not. Defined here for the
  // files that launch.
  template <class Args>
  Launched launch(Kernel kernel, int blocks, int workers, Args& args, Lane lane, cudaStream_t stream,
                  CallTickets* tickets = nullptr, bool last = true) {
    StreamOrder& order = lane == Lane::kCollectives ? collectives_ : messages_;
    const bool captured = order.before(stream, group_);
    if (!captured) args.ticket = tickets != nullptr ? tickets->next(last) : log_.open(call_timeout_);
    launch_kernel(kernel, blocks, workers, &args, stream, captured);
    ++launches_;
    last_captured_ = captured;
    order.after(stream, captured);
    return {lane, args.ticket, blocks, captured, reinterpret_cast<std::uintptr_t>(stream)};
  }
  // Under mutex_: a call on `stream`, by `act`. If that throws behind a launch, the group ends.
  template <class Act>
  void issue_whole(cudaStream_t stream, const Act& act) {
    issue_as_a_whole([this] { return launches_; }, act, [&](const std::string& why) { end_incomplete(stream, why); });
  }
  void end_incomplete(cudaStream_t stream, const std::string& why) noexcept;
  void launch_kernel(Kernel kernel, int blocks, int workers, void* args, cudaStream_t stream, bool captured);
  // launches.cc
  bool may_launch_early() const;
  bool comes_early(const Kernel& kernel, unsigned grid, bool captured);

  const int rank_;
  const int size_;
  const CudaOptions options_;
  const Config& config_;  // of options_
  const std::optional<ForcedChoice> forced_;
  const CompileMode compile_mode_;
  const Logger logger_;
  const PlanFiles plan_files_;
  const Tuning tuning_;  // of this rank
  // Shared with the graphs that hold its kernels.
  const std::shared_ptr<GpuGroup> group_;

  mutable std::mutex reason_mutex_;  // guards the next three
  std::string abort_reason_;
  std::function<std::optional<Error>()> lost_;  // follow()
  mutable std::optional<Error> ended_by_;       // what it has told first
  // Counts under mutex_. relaxed: a reader on another thread wants any recent value.
  std::atomic<std::uint64_t> sequence_{0};
  std::atomic<std::uint64_t> direct_calls_{0};     // relaxed, both: they order nothing
  std::shared_ptr<SymmetricMemory> shared_board_;  // null: peers' calls are not known
  CallBoard board_;
  mutable CallLog log_;
  Registrations registrations_;
  // For memory that goes later than it should.
  struct Life {
    std::mutex mutex;  // guards the flag, and is held while such memory uses the communicator; before mutex_
    bool over = false;
  };
  const std::shared_ptr<Life> life_ = std::make_shared<Life>();

  mutable std::mutex mutex_;
  TunedCalls tuned_calls_;              // const after the constructor
  QuietDevice::Member quiet_;           // what loads compiled plans; const once it is added
  std::shared_ptr<DevicePlans> plans_;  // null without any; shared with the graphs that hold its kernels
  StreamOrder collectives_, messages_;
  std::uint64_t launches_ = 0;   // kernels that other ranks may meet
  bool last_captured_ = false;   // the last of them
  unsigned last_grid_[2] = {};   // of the last launch, eager and captured
  bool early_launches_ = false;  // const after the constructor
  CopyStreams copy_streams_;
  OwnStream own_stream_;                      // locks for itself
  std::chrono::milliseconds call_timeout_{};  // of the call that is being issued; zero: the group's
  std::unordered_map<const CudaRegion*, std::uint32_t> port_memories_;  // registered ones: the ports' numbers
  std::uint64_t offers_ = 0;                                            // of plans: names them
  std::uint64_t registration_calls_ = 0;                                // names them
};

}  // namespace tutti::cuda
