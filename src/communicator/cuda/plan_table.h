// The plans and kernels that a communicator on GPUs has, and which of them a call takes. Files (TUTTI_PLAN_PATH) and
// what the program gives (tutti/user_algorithm.h) are one list. "Plan" stands for both but where a kernel is named.
// Knows nothing of CUDA: device_plans.h has their memory.
//
// Plans enter by an offer, which all ranks make at the same time and compare: if they offer different ones, all raise,
// and what one rank cannot run none does.
//
// The order of choice is that of CPUs: what the call names, what the selector function answers, the plans that were
// given in their order, those of files. TUTTI_CUDA_ALGORITHM comes behind what the call names, and before all else.
//
// Thread rule: an offer belongs to one thread; a table is the communicator's, under its mutex.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "algorithm/algorithm.h"
#include "algorithm/user/algorithm_source.h"
#include "communicator/cuda/plan_room.h"
#include "executor/cuda/device_plan.h"
#include "plan/structure.h"
#include "tutti/call.h"
#include "tutti/user_algorithm.h"

namespace tutti::cuda {

// A kernel's code on this rank's GPU. Its owner knows of which kind.
struct LoadedCode {
  virtual ~LoadedCode() = default;
};

struct TablePlan {
  AlgorithmLimits limits;  // not the program's object: a table may stay as long as a graph
  std::string name;        // "plan:NAME" or "native:NAME"
  std::string path;        // where it is from
  Collective collective = Collective::kBarrier;
  std::shared_ptr<const plan::Plan> plan;         // null: a kernel
  std::optional<KernelAlgorithm> kernel;          // else none
  std::shared_ptr<const LoadedCode> kernel_code;  // null if it is unfit
  plan::Shape shape;
  std::uint64_t identity = 0;                          // UserAlgorithm::identity()
  std::uint32_t record_identity = 0;                   // of what ranks compare in a call
  std::string unfit;                                   // why it cannot run on these GPUs; empty: it can
  std::shared_ptr<const executor::DevicePlan> device;  // this rank's; null if it is unfit, or a kernel

  bool fits() const noexcept { return unfit.empty(); }
  // The name alone.
  std::string_view short_name() const noexcept { return std::string_view(name).substr(name.find(':') + 1); }
};

class PlanTable;

// Who offers, and what its GPU says of what it offers.
struct OfferingRank {
  int rank = 0, size = 1;
  // How many blocks of so many workers it holds at once.
  std::function<PlanRoom(int workers)> room_for;
  // Compiles a kernel and loads it. Throws Error if it cannot.
  std::function<std::shared_ptr<const LoadedCode>(const KernelAlgorithm&)> load_kernel;
};

class PlanOffer {
 public:
  // New are those that `table` (null: none) has not got. Left out is what GPUs cannot run, and what is for other
  // numbers of ranks. `chooses`: a function chooses among them.
  PlanOffer(const std::vector<UserAlgorithmPtr>& algorithms, const PlanTable* table, const OfferingRank& offering,
            bool chooses);

  // Tries the new ones, each with its part of the memory that plans have together: compiles and loads kernels. What
  // goes wrong makes one unfit, want of memory too: the other ranks wait to hear of it.
  void try_new();
  // For the other ranks, after try_new().
  std::string text() const;
  // `texts`: all ranks'. Throws an Error (kMismatch) that all ranks throw, if they offer different algorithms.
  void agree(const std::vector<std::string>& texts);

  // After agree(): what the table has not got; those that fit have a DevicePlan, or code.
  std::vector<std::unique_ptr<TablePlan>> take_new() { return std::move(new_); }
  // All that was offered, in order.
  const std::vector<std::uint64_t>& identities() const noexcept { return identities_; }

 private:
  void try_one(TablePlan& plan, std::size_t most_bytes) const;

  OfferingRank offering_;
  const int rank_, size_;
  const bool chooses_;
  std::vector<std::uint64_t> identities_;
  std::vector<std::string> names_;
  std::vector<std::unique_ptr<TablePlan>> new_;
};

// What a rank has run into, for the others. Short where there is no memory for more: within the string.
std::string reason_of(const std::exception& error) noexcept;
// So of what `act` throws; empty: nothing.
template <class Act>
std::string problem_of(const Act& act) noexcept {
  try {
    act();
    return {};
  } catch (const std::exception& error) {
    return reason_of(error);
  }
}
// `problems`: all ranks'. Throws an Error (kExhausted) that all ranks throw, if one has any.
void require_ready(const std::vector<std::string>& problems);

class PlanTable {
 public:
  using Choose = std::function<UserAlgorithmPtr(const AlgorithmRequest&)>;

  // In `plans`, what an offer has added; null if it has not.
  const TablePlan* find(std::uint64_t identity) const noexcept;
  // For so many more, which add() then takes without memory of its own.
  void make_room(std::size_t more) { plans_.reserve(plans_.size() + more); }
  // Keeps them for good: graphs may hold their kernels.
  void add(std::vector<std::unique_ptr<TablePlan>> plans);

  void set_files(const std::vector<std::uint64_t>& identities) { files_ = found(identities); }
  // Replaces what was given before; `choose` may be null. Returns the function before, which takes locks of its
  // program's as it goes.
  Choose install(const std::vector<std::uint64_t>& identities, Choose choose);

  // The function that is asked; null without. A copy: it is asked without the mutex.
  const Choose& chooser() const noexcept { return choose_; }

  // What the call names. Throws Error(kInvalidArgument, kUnsupported) saying why it cannot run it.
  const TablePlan& named(const UserAlgorithm& algorithm, const CallShape& shape) const;
  // What the function has answered, by identity (0: nothing), if that fits the call; null else.
  const TablePlan* answered(std::uint64_t identity, const CallShape& shape) const noexcept;
  // What else a call takes: the first that fits.
  const TablePlan* first_fit(const CallShape& shape) const noexcept;

  // A line for each plan of the call's collective, given or of a file, of which `taken` runs it (null: none): "->
  // plan:ring: runs the plan of FILE".
  std::string explain(const CallShape& shape, const TablePlan* taken) const;

 private:
  std::vector<const TablePlan*> found(const std::vector<std::uint64_t>& identities) const;

  std::vector<std::unique_ptr<TablePlan>> plans_;  // at addresses that last
  std::vector<const TablePlan*> given_, files_;
  Choose choose_;
};

// Who says which plan a call takes.
enum class PlanChooser { kNobody, kCall, kFunction, kOrder };
// `forced`: TUTTI_CUDA_ALGORITHM is set. `table`: null without any plan.
PlanChooser plan_chooser_of(const Call& call, bool forced, const PlanTable* table) noexcept;

// Null, or why the plan does not serve the call.
const char* refusal_on_gpu(const TablePlan& plan, const CallShape& shape) noexcept;

}  // namespace tutti::cuda
