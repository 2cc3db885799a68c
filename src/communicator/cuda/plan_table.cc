#include "communicator/cuda/plan_table.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "algorithm/plan/plan_algorithm.h"
#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/identity.h"
#include "algorithm/user/limited.h"
#include "base/bytes.h"
#include "base/collective_traits.h"
#include "bootstrap/exchange.h"
#include "communicator/named_algorithm.h"

namespace tutti::cuda {
namespace {

// That peers map: of one plan, and of all that come with one offer, of which each then has its part.
constexpr std::size_t kMostBytes = std::size_t{16} << 20, kMostBytesTogether = std::size_t{256} << 20;

// A compiler's messages in what ranks tell each other.
constexpr std::size_t kMostReason = 4000;

const AlgorithmSource* source_of(const UserAlgorithm& algorithm) noexcept {
  return dynamic_cast<const AlgorithmSource*>(&algorithm);
}
bool runs_on_gpus(const UserAlgorithm& algorithm) noexcept {
  const AlgorithmSource* const source = source_of(algorithm);
  return source != nullptr && (source->plan_file() != nullptr || source->kernel() != nullptr);
}

// Of the rank blocks that a call gives a kernel.
plan::Shape shape_for(Collective collective, int size) {
  const CollectiveTraits& traits = traits_of(collective);
  plan::Shape shape;
  shape.blocks[0] = traits.input_blocks ? size : 1;
  shape.blocks[1] = traits.output_blocks ? size : 1;
  return shape;
}

std::unique_ptr<TablePlan> entry_of(const UserAlgorithm& algorithm, int size) {
  const AlgorithmSource& source = *source_of(algorithm);
  auto made = std::make_unique<TablePlan>();
  made->limits = algorithm.limits();
  made->collective = *algorithm.collective();
  made->identity = algorithm.identity();
  made->record_identity = fold(made->identity);
  if (const PlanFile* const file = source.plan_file()) {
    made->name = "plan:" + algorithm.name();
    made->path = file->path;
    made->plan = file->plan;
    made->shape = plan::shape_of(*file->plan);
  } else {
    made->name = "native:" + algorithm.name();
    made->kernel = *source.kernel();
    made->path = made->kernel->source->file;
    made->shape = shape_for(made->collective, size);
  }
  return made;
}

// What one rank has offered, as another reads it.
struct Offered {
  bool chooses = false;
  std::vector<std::uint64_t> identities;
  std::vector<std::string> names;
  std::vector<std::string> unfit;  // of what is new

  explicit Offered(std::string_view text) {
    ByteReader in(text);
    chooses = in.u8() != 0;
    for (std::uint32_t left = in.u32(); left > 0 && in.ok(); --left) {
      identities.push_back(in.u64());
      names.emplace_back(in.text());
    }
    for (std::uint32_t left = in.u32(); left > 0 && in.ok(); --left) unfit.emplace_back(in.text());
  }

  // At `place`, for an error.
  std::string at(std::size_t place) const {
    if (place >= identities.size()) return "nothing";
    return names[place] + " (" + hexadecimal(fold(identities[place])) + ")";
  }
};

}  // namespace

PlanOffer::PlanOffer(const std::vector<UserAlgorithmPtr>& algorithms, const PlanTable* table,
                     const OfferingRank& offering, bool chooses)
    : offering_(offering), rank_(offering.rank), size_(offering.size), chooses_(chooses) {
  for (const UserAlgorithmPtr& algorithm : algorithms) {
    if (!runs_on_gpus(*algorithm) || !algorithm->collective() || !is_for_ranks(algorithm->limits(), size_, 1)) continue;
    const std::uint64_t identity = algorithm->identity();
    const bool twice = std::find(identities_.begin(), identities_.end(), identity) != identities_.end();
    identities_.push_back(identity);
    names_.push_back(algorithm->name());
    if (twice || (table != nullptr && table->find(identity) != nullptr)) continue;
    new_.push_back(entry_of(*algorithm, size_));
  }
}

void PlanOffer::try_new() {
  const std::size_t each =
      std::min(kMostBytes, kMostBytesTogether / std::max<std::size_t>(1, new_.size()) / 4096 * 4096);
  for (const auto& plan : new_) {
    try {
      try_one(*plan, each);
    } catch (const std::exception& error) {
      plan->unfit = reason_of(error);
    }
  }
}

void PlanOffer::try_one(TablePlan& plan, std::size_t most_bytes) const {
  if (plan.kernel) {
    if (plan.kernel->scratch_bytes > most_bytes) {
      throw_error(ErrorKind::kUnsupported, "kernel \"" + std::string(plan.short_name()) + "\" wants " +
                                               std::to_string(plan.kernel->scratch_bytes) +
                                               " bytes of scratch, and an algorithm has at most " +
                                               std::to_string(most_bytes));
    }
    plan.kernel_code = offering_.load_kernel(*plan.kernel);
    return;
  }
  const PlanRoom room = offering_.room_for(executor::DevicePlan::threads_of(*plan.plan));
  const executor::DeviceLimits limits{room.blocks, most_bytes, room.why};
  plan.device = std::make_shared<executor::DevicePlan>(plan.plan, rank_, limits);
}

std::string PlanOffer::text() const {
  ByteWriter out;
  out.u8(chooses_ ? 1 : 0).u32(static_cast<std::uint32_t>(identities_.size()));
  for (std::size_t i = 0; i < identities_.size(); ++i) out.u64(identities_[i]).text(names_[i]);
  out.u32(static_cast<std::uint32_t>(new_.size()));
  for (const auto& plan : new_) out.text(plan->unfit);
  return std::move(out).str();
}

void PlanOffer::agree(const std::vector<std::string>& texts) {
  const Offered first(texts.front());
  std::vector<Offered> all;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    const Offered& other = all.emplace_back(texts[r]);
    const std::string who = ", rank " + std::to_string(r) + " ";
    if (other.chooses != first.chooses) {
      throw KnownToAll(ErrorKind::kMismatch, "the ranks choose algorithms differently: rank 0 " +
                                                 std::string(first.chooses ? "by a function" : "without a function") +
                                                 who + (other.chooses ? "by a function" : "without one"));
    }
    if (other.identities == first.identities) continue;
    std::size_t place = 0;
    while (place < first.identities.size() && place < other.identities.size() &&
           first.identities[place] == other.identities[place]) {
      ++place;
    }
    throw KnownToAll(ErrorKind::kMismatch,
                     "the ranks name different algorithms: rank 0 " + first.at(place) + who + other.at(place));
  }
  for (std::size_t i = 0; i < new_.size(); ++i) {
    for (std::size_t r = 0; r < all.size(); ++r) {
      if (i >= all[r].unfit.size() || all[r].unfit[i].empty()) continue;
      new_[i]->device.reset();
      new_[i]->kernel_code.reset();
      new_[i]->unfit = static_cast<int>(r) == rank_ ? all[r].unfit[i]
                                                    : "rank " + std::to_string(r) + " of " + std::to_string(size_) +
                                                          " cannot run it: " + all[r].unfit[i];
      break;
    }
  }
}

std::string reason_of(const std::exception& error) noexcept {
  try {
    if (dynamic_cast<const std::bad_alloc*>(&error) == nullptr) return std::string(error.what()).substr(0, kMostReason);
  } catch (const std::bad_alloc&) {
  }
  return "no memory left";
}

void require_ready(const std::vector<std::string>& problems) {
  for (std::size_t r = 0; r < problems.size(); ++r) {
    if (problems[r].empty()) continue;
    throw KnownToAll(ErrorKind::kExhausted, "no rank has the new plans, because rank " + std::to_string(r) + " of " +
                                                std::to_string(problems.size()) + " cannot take them: " + problems[r] +
                                                "; free some memory and give them again, on all ranks");
  }
}

const TablePlan* PlanTable::find(std::uint64_t identity) const noexcept {
  const auto found = std::find_if(plans_.begin(), plans_.end(),
                                  [&](const std::unique_ptr<TablePlan>& plan) { return plan->identity == identity; });
  return found != plans_.end() ? found->get() : nullptr;
}

void PlanTable::add(std::vector<std::unique_ptr<TablePlan>> plans) {
  for (auto& plan : plans) plans_.push_back(std::move(plan));
}

std::vector<const TablePlan*> PlanTable::found(const std::vector<std::uint64_t>& identities) const {
  std::vector<const TablePlan*> list;
  for (const std::uint64_t identity : identities) {
    if (const TablePlan* plan = find(identity)) list.push_back(plan);
  }
  return list;
}

PlanTable::Choose PlanTable::install(const std::vector<std::uint64_t>& identities, Choose choose) {
  given_ = found(identities);
  return std::exchange(choose_, std::move(choose));
}

PlanChooser plan_chooser_of(const Call& call, bool forced, const PlanTable* table) noexcept {
  if (call.choice != nullptr) return PlanChooser::kCall;
  if (table == nullptr || forced || call.collective == Collective::kBarrier || call.uneven) return PlanChooser::kNobody;
  return table->chooser() != nullptr ? PlanChooser::kFunction : PlanChooser::kOrder;
}

const char* refusal_on_gpu(const TablePlan& plan, const CallShape& shape) noexcept {
  if (plan.collective != shape.collective) return "computes something else";
  if (!plan.fits()) return plan.unfit.c_str();
  if (const char* reason = limits_refusal(plan.limits, shape)) return reason;
  const char* const reason =
      plan.kernel ? plugin_refusal(plan.kernel->refusal, shape) : plan_refusal(*plan.plan, plan.collective, shape);
  if (reason != nullptr) return reason;
  if (shape.bytes == 0) return "is for messages of other sizes";
  if (reduces(shape.collective) && shape.op == ReduceOp::kPremulSum) return "multiplies by no factor on GPUs";
  return nullptr;
}

const TablePlan& PlanTable::named(const UserAlgorithm& algorithm, const CallShape& shape) const {
  check_computes(algorithm, shape);
  const std::string head = "\"" + algorithm.name() + "\" ";
  if (!runs_on_gpus(algorithm)) {
    throw_error(ErrorKind::kUnsupported,
                head + "computes in main memory: on GPUs an algorithm is a plan, or a kernel of a .cu file");
  }
  if (!is_for_ranks(algorithm.limits(), shape.ranks, 1)) refuse_named(algorithm, shape, "is for other ranks");
  const TablePlan* const plan = find(algorithm.identity());
  if (plan == nullptr) {
    throw_error(ErrorKind::kInvalidArgument, head + "has no memory on these GPUs yet, which all ranks make together");
  }
  if (!plan->fits()) throw_error(ErrorKind::kUnsupported, plan->unfit);
  refuse_named(algorithm, shape, refusal_on_gpu(*plan, shape));
  return *plan;
}

const TablePlan* PlanTable::answered(std::uint64_t identity, const CallShape& shape) const noexcept {
  const TablePlan* const plan = find(identity);
  return plan != nullptr && refusal_on_gpu(*plan, shape) == nullptr ? plan : nullptr;
}

const TablePlan* PlanTable::first_fit(const CallShape& shape) const noexcept {
  for (const auto* list : {&given_, &files_}) {
    if (list == &given_ && choose_ != nullptr) continue;  // then the function has been asked
    for (const TablePlan* plan : *list) {
      if (refusal_on_gpu(*plan, shape) == nullptr) return plan;
    }
  }
  return nullptr;
}

std::string PlanTable::explain(const CallShape& shape, const TablePlan* taken) const {
  std::string text;
  for (const auto* list : {&given_, &files_}) {
    for (const TablePlan* plan : *list) {
      if (plan->collective != shape.collective) continue;
      const char* const reason = refusal_on_gpu(*plan, shape);
      text += std::string(plan == taken ? "-> " : "   ") + plan->name + ": ";
      if (plan == taken) {
        text += std::string(plan->kernel ? "runs the kernel of " : "runs the plan of ") + plan->path;
      } else if (reason != nullptr) {
        text += std::string("not here: ") + reason;
      } else {
        text += list == &given_ && choose_ != nullptr ? "would work; the selector function decides"
                                                      : "would work; another is preferred";
      }
      text += '\n';
    }
  }
  return text;
}

}  // namespace tutti::cuda
