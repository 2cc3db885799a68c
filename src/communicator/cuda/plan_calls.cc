// CudaCommunicator's calls that run a plan: where plans come from, who chooses, segments.
#include <algorithm>
#include <limits>

#include "algorithm/cuda/kernels.h"
#include "algorithm/plan/verdict_store.h"
#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/identity.h"
#include "base/collective_traits.h"
#include "communicator/cuda/cuda_communicator_impl.h"
#include "communicator/cuda/native_kernels.h"
#include "communicator/group_settings.h"
#include "communicator/named_algorithm.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/relaxed_capture.h"

namespace tutti::cuda {

void CudaCommunicatorImpl::set_algorithms(AlgorithmSet set) {
  require_collectives();
  const std::vector<std::uint64_t> given = admit(set.algorithms, set.choose != nullptr);
  PlanTable::Choose before;  // goes after the mutex
  const std::lock_guard lock(mutex_);
  if (plans_ == nullptr) return;
  try {
    before = plans_->table().install(given, std::move(set.choose));
  } catch (const std::exception& error) {  // the others choose among them by now
    abort(reason_of(error));
    throw;
  }
}

void CudaCommunicatorImpl::prepare(const UserAlgorithmPtr& algorithm) {
  require_collectives();
  {
    const std::lock_guard lock(mutex_);
    if (size_ == 1 || (plans_ != nullptr && plans_->table().find(algorithm->identity()) != nullptr)) return;
  }
  admit({algorithm}, false);
}

// Not under the mutex while it waits for other ranks, or loads kernels, which may wait for those that wait for ranks:
// their messages to this one may have to go on. What a rank runs into by itself is said to the others before the plans
// are added, which takes no memory any more then.
std::vector<std::uint64_t> CudaCommunicatorImpl::admit(const std::vector<UserAlgorithmPtr>& algorithms, bool chooses) {
  if (size_ == 1) return {};
  const DeviceGuard guard(group_->device());
  const RelaxedCapture relaxed;  // memory is made, and code loaded
  std::unique_lock lock(mutex_);
  throw_if_failed();
  collectives_.wait();  // allocating waits for kernels, which may wait for ranks that do the same
  const std::string name = "plans/" + std::to_string(offers_++);
  PlanOffer offer(algorithms, plans_ != nullptr ? &plans_->table() : nullptr, offering(), chooses);
  lock.unlock();
  offer.try_new();
  std::vector<std::uint64_t> identities = offer.identities();
  offer.agree(group_->all_gather(name, offer.text()));
  std::vector<std::unique_ptr<TablePlan>> plans = offer.take_new();
  const std::size_t bytes = DevicePlans::bytes_of(plans);
  std::shared_ptr<SymmetricMemory> memory = bytes > 0 ? group_->allocate(name + ", memory", bytes) : nullptr;
  lock.lock();
  std::shared_ptr<DevicePlans> all = plans_;
  DevicePlans::Addition made;
  const std::string problem = problem_of([&] {
    for (const auto& plan : plans) {
      if (!plan->unfit.empty()) logger_.warning(plan->path + " is passed over: " + plan->unfit);
    }
    if (all == nullptr) {
      all = std::make_shared<DevicePlans>(*group_, compile_options());
      if (!all->together()) logger_.info("the blocks of plans come one by one: kernels that come whole do not meet");
    }
    made = all->make(std::move(plans), std::move(memory));
  });
  lock.unlock();
  require_ready(group_->all_gather(name + ", ready", problem));
  lock.lock();
  if (plans_ == nullptr) plans_ = std::move(all);
  plans_->add(std::move(made));
  return identities;
}

// By the kernel that has least of it: which of them a plan runs, its calls say.
PlanRoom CudaCommunicatorImpl::plan_room(int workers) const {
  const int threads = workers + kControlThreads;
  int each = std::numeric_limits<int>::max();
  for (const Reducer reducer : {Reducer::kSumF32, Reducer::kSumBf16, Reducer::kSumF16, Reducer::kAny}) {
    int held = 0;
    check_cuda(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, plan_kernel_of(reducer), threads, 0),
               "cudaOccupancyMaxActiveBlocksPerMultiprocessor");
    each = std::min(each, held);
  }
  return room_of(group_->processors(), each, threads, group_->sharers(), group_->wanted_blocks());
}

OfferingRank CudaCommunicatorImpl::offering() const {
  return {rank_, size_, [this](int workers) { return plan_room(workers); },
          [this](const KernelAlgorithm& kernel) {
            return std::make_shared<const LoadedKernel>(kernel, group_->device(), cache_folder(config_), config_.nvrtc);
          }};
}

CompiledPlans::Options CudaCommunicatorImpl::compile_options() const {
  CompiledPlans::Options options{compile_mode_, group_->device(), cache_folder(config_), config_.nvrtc, logger_};
  options.processors = group_->processors();
  options.sharers = group_->sharers();
  return options;
}

CallShape CudaCommunicatorImpl::plan_shape_of(const Call& call) const noexcept {
  CallShape shape;
  shape.collective = call.collective;
  shape.dtype = call.dtype;
  shape.op = reduces(call.collective) ? call.op : ReduceOp::kSum;
  shape.bytes = agreed_bytes(call, size_);
  shape.ranks = size_;
  shape.uneven = call.uneven;
  shape.root = has_root(call.collective) ? call.root : -1;
  return shape;
}

const TablePlan* CudaCommunicatorImpl::plan_of(const Call& call, std::unique_lock<std::mutex>& lock) const {
  const PlanChooser chooser =
      plan_chooser_of(call, forced_.has_value(), plans_ != nullptr ? &plans_->table() : nullptr);
  if (chooser == PlanChooser::kNobody) return nullptr;
  const CallShape shape = plan_shape_of(call);
  if (chooser == PlanChooser::kCall) {
    const UserAlgorithm& algorithm = *call.choice->algorithm;
    check_computes(algorithm, shape);
    if (size_ == 1) return nullptr;  // nothing has to be run
    const PlanTable none;            // finds no plan, and says why
    return &(plans_ != nullptr ? plans_->table() : none).named(algorithm, shape);
  }
  if (chooser == PlanChooser::kFunction) {
    std::uint64_t identity = 0;
    {
      const PlanTable::Choose choose = plans_->table().chooser();
      lock.unlock();
      if (const UserAlgorithmPtr answer = choose(request_of(call, shape, rank_))) identity = answer->identity();
    }  // both go before the mutex is taken, since they take locks of their program's
    lock.lock();
    if (const TablePlan* plan = plans_->table().answered(identity, shape)) return plan;
  }
  return plans_->table().first_fit(shape);
}

std::uint64_t CudaCommunicatorImpl::plan_for(const Call& call) const {
  check(call);
  std::unique_lock lock(mutex_);
  const TablePlan* const plan = plan_of(call, lock);
  return plan != nullptr ? plan->identity : 0;
}

void CudaCommunicatorImpl::run_as(std::uint64_t plan, const Call& call, CudaStream stream,
                                  std::chrono::milliseconds timeout) {
  check(call);
  const DeviceGuard guard(group_->device());
  const std::lock_guard lock(mutex_);
  throw_if_failed();
  // Plans stay for good.
  const TablePlan* const found = plan != 0 ? plans_->table().find(plan) : nullptr;
  const auto on = static_cast<cudaStream_t>(stream);
  issue_whole(on, [&] { issue(call, found, on, timeout); });
}

void CudaCommunicatorImpl::use_tuning() {
  if (rank_ == 0 && !tuning_.complaint.empty()) logger_.warning(tuning_.complaint);
  if (!group_->differences().empty()) {
    if (rank_ == 0) logger_.warning(not_used(options_.name, group_->differences()));
    return;
  }
  // A rank that forces kernels takes part: whether it does is not compared.
  if (tuning_.table == nullptr) return;
  std::vector<TuningRule> rules = rules_on_gpus(*tuning_.table, size_, group_->gpus());
  if (rules.empty()) return;
  std::vector<UserAlgorithmPtr> algorithms;
  for (const PlanFile& file : tuning_.plans) algorithms.push_back(plan_algorithm(file));
  std::vector<const TablePlan*> plans;
  if (!algorithms.empty()) {
    for (const std::uint64_t identity : admit(algorithms, false)) {
      if (const TablePlan* plan = plans_->table().find(identity)) plans.push_back(plan);
    }
  }
  tuned_calls_ = TunedCalls(std::move(rules), plans);
}

const TunedStep* CudaCommunicatorImpl::tuned(const Call& call) const noexcept {
  return forced_ || call.uneven ? nullptr : tuned_calls_.step_for(plan_shape_of(call), shape_of(call));
}

Choice CudaCommunicatorImpl::kernel_for(const Call& call) const {
  const TunedStep* const step = tuned(call);
  return choose(shape_of(call), step != nullptr && step->plan == nullptr ? std::optional(step->kernel) : forced_);
}

// Of a call that takes no plan.
bool CudaCommunicatorImpl::is_forced(const Call& call) const {
  if (!forced_ || runs_as_messages(call)) return false;
  if (!forced_->copy_engine) return takes_forced(shape_of(call), forced_);
  const std::optional<DirectPlace> place = direct_place(call);
  return place && place->by_copy_engines;
}

std::string CudaCommunicatorImpl::candidates(const Call& call) const {
  const std::string taken = explain(call);
  std::unique_lock lock(mutex_);
  const CallShape shape = plan_shape_of(call);
  const bool messages = runs_as_messages(call);
  const TablePlan* const plan = messages ? nullptr : plan_of(call, lock);
  if (forced_ && plan == nullptr) {
    return "-> " + taken +
           (is_forced(call) ? ": forced by TUTTI_CUDA_ALGORITHM\n"
                            : ": Tutti's own kernels; what TUTTI_CUDA_ALGORITHM names does not serve the call\n");
  }
  std::string text = plans_ != nullptr ? plans_->table().explain(shape, plan) : "";
  if (plan != nullptr) return text + "   " + to_string(kernel_for(call)) + ": would work; a plan is preferred\n";
  const bool registered = direct_place(call).has_value();
  const TunedStep* const step = messages || registered ? nullptr : tuned(call);
  if (step != nullptr) return text + tuned_calls_.explain(shape, shape_of(call), *step);
  return text + "-> " + taken + ": Tutti's own kernels\n";
}

// Asks for what the call's segments could run, all of one size but the last, and loads what is there.
void CudaCommunicatorImpl::load_compiled(const PlannedCall& planned, bool may_load) {
  CompiledPlans& compiled = plans_->compiled_plans();
  if (!compiled.enabled()) return;
  if (!may_load) return compiled.drop_open();
  const std::size_t segment = plans_->segment_bytes(planned);
  const std::size_t last = (agreed_bytes(planned.call, size_) - 1) / segment * segment;
  static_cast<void>(plans_->compiled(planned, 0, true));
  if (last > 0) static_cast<void>(plans_->compiled(planned, last, true));
  if (QuietDevice::of_process().any_waits()) QuietDevice::of_process().load_if_quiet(quiet_);
}

// Where the tensors lie that the plan reaches into, if all of those are registered and every rank has them.
std::optional<DirectPlace> CudaCommunicatorImpl::plan_place(const Call& call, const TablePlan& plan) const {
  const CollectiveTraits& traits = traits_of(call.collective);
  if (traits.root_reads || traits.root_writes || call.collective == Collective::kBroadcast) return std::nullopt;
  DirectSizes sizes;
  sizes.shared_input = plan.device->maps_input();
  sizes.shared_output = plan.device->maps_output();
  if (!sizes.shared_input && !sizes.shared_output) return std::nullopt;
  const std::size_t bytes = agreed_bytes(call, size_);
  sizes.input = bytes * static_cast<std::size_t>(plan.shape.blocks[0]);
  sizes.output = bytes * static_cast<std::size_t>(plan.shape.blocks[1]);
  std::optional<DirectPlace> place = registrations_.place_of(call, sizes, plan.identity);
  // A plan that is not made for that, in a call in place: its input would be written while peers read it. Where both
  // are compared it is so on all ranks.
  const bool both = sizes.shared_input && sizes.shared_output;
  if (place && both && call.input.base < call.output.base + sizes.output &&
      call.output.base < call.input.base + sizes.input) {
    return std::nullopt;
  }
  return place;
}

// How a call wants it launched, or how it says.
void CudaCommunicatorImpl::run_kernel(const Call& call, const TablePlan& plan, cudaStream_t stream) {
  const KernelAlgorithm& kernel = *plan.kernel;
  const int wanted = call.choice != nullptr && call.choice->blocks > 0 ? call.choice->blocks : kernel.blocks;
  const int threads = call.choice != nullptr && call.choice->threads > 0 ? call.choice->threads : kernel.threads;
  if (wanted > kMaxBlocks || threads > kernel.threads || threads % 32 != 0) {
    throw_error(ErrorKind::kInvalidArgument,
                "kernel \"" + std::string(plan.short_name()) + "\": " + std::to_string(wanted) + " blocks of " +
                    std::to_string(threads) + " threads; at most " + std::to_string(kMaxBlocks) + " of " +
                    std::to_string(kernel.threads) + ", in whole warps of 32, can be launched");
  }
  const int blocks = std::min(wanted, group_->most_blocks());
  const std::uint64_t how = Identity()
                                .add(plan.identity)
                                .add(static_cast<std::uint64_t>(blocks))
                                .add(static_cast<std::uint64_t>(threads))
                                .value();
  const CallRecord record = next_record(call, fold(how), plan.short_name());
  // A kernel of the program's does not do it.
  if (call.collective == Collective::kBroadcast && rank_ == call.root) {
    copy_own_part(call.output.data(0), call.input.data(0), call.input.size(0), stream);
  }
  NativeArgs args = plans_->native_args(plan, call);
  args.fingerprint = record.hash;
  const auto& code = static_cast<const LoadedKernel&>(*plan.kernel_code);
  collectives_.retain(stream, plans_);  // of a graph, before it has the kernel
  const Launched launched =
      launch(code.entry(reducer_of(call.dtype, call.op)), blocks, threads, args, Lane::kCollectives, stream);
  log(call, record, plan.name, launched);
}

void CudaCommunicatorImpl::run_plan(const Call& call, const TablePlan& plan, cudaStream_t stream) {
  if (plan.kernel) return run_kernel(call, plan, stream);
  const bool captures = cuda::is_capturing(stream);
  if (plans_->crowded() && !captures) {
    collectives_.wait();  // kernels under way read the records
    plans_->drop();
  }
  const std::optional<DirectPlace> place = takes_registered() ? plan_place(call, plan) : std::nullopt;
  const std::uint32_t choice =
      place ? fold(Identity().add(plan.identity).add(place->number).value()) : plan.record_identity;
  const CallRecord record = next_record(call, choice, plan.short_name());
  if (place) {
    registrations_.remember(record.hash, *place);
    direct_calls_.fetch_add(1, std::memory_order_relaxed);
  }
  const PlannedCall planned{plan, call, place ? &*place : nullptr};
  // Once a call was captured, this communicator is never known to be idle again.
  const bool may_load = !captures && !collectives_.has_captured() && !messages_.has_captured();
  load_compiled(planned, may_load);
  // A graph gets what its kernels need before it has the first of them.
  if (captures && capture_of(stream).id != 0) {  // one that has failed has none
    plans_->keep_records();
    collectives_.retain(stream, plans_);
    if (place) keep_for_graph(*place, stream);
  }
  const void* interpreter =
      plan_kernel_of(reduces(call.collective) ? reducer_of(call.dtype, call.op) : Reducer::kSumF32);
  const std::size_t bytes = agreed_bytes(call, size_), segment = plans_->segment_bytes(planned);
  CallTickets tickets(log_, call_timeout_);
  Launched last;
  bool all_compiled = true;
  const auto run = [&](Kernel kernel, int workers, int cluster, auto args, std::size_t begin) {
    args.fingerprint = record.hash;
    kernel.together = plans_->together() && plan.device->blocks() > 1;  // a cluster comes whole as it is
    kernel.cluster = cluster;
    kernel.early = true;
    last = launch(kernel, plan.device->blocks(), workers, args, Lane::kCollectives, stream, &tickets,
                  bytes - begin <= segment);
  };
  // The code, or null: then the records are there.
  const auto prepare = [&](std::size_t begin) {
    const CompiledPlans::Kernel* const compiled = plans_->compiled(planned, begin, may_load);
    if (compiled != nullptr) return compiled;
    all_compiled = false;
    static_cast<void>(plans_->interpreted(planned, begin));
    return compiled;
  };
  launch_segments(bytes, segment, prepare, [&](std::size_t begin, const CompiledPlans::Kernel* compiled) {
    if (compiled != nullptr) {
      return run(compiled->function, compiled->workers, compiled->cluster, plans_->compiled_args(planned, begin),
                 begin);
    }
    const InterpretedCall interpreted = plans_->interpreted(planned, begin);
    run(interpreter, plan.device->threads(), interpreted.cluster, interpreted.args, begin);
  });
  log(call, record, all_compiled ? plans_->compiled_name(plan) : plan.name, last);
}

}  // namespace tutti::cuda
