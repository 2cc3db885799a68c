#include "communicator/algorithm_table.h"

#include <utility>

#include "algorithm/user/algorithm_source.h"
#include "algorithm/user/identity.h"
#include "algorithm/user/limited.h"
#include "communicator/named_algorithm.h"
#include "tutti/error.h"

namespace tutti {

AlgorithmTable::AlgorithmTable(std::shared_ptr<const AlgorithmCollection> base, MakeSelector make_selector,
                               GroupPlace world, bool arenas_mapped, std::uint32_t plans)
    : base_(std::move(base)),
      make_selector_(std::move(make_selector)),
      world_(std::move(world)),
      arenas_mapped_(arenas_mapped),
      plans_(plans),
      identity_(plans),
      selector_(std::make_shared<const Selector>(make_selector_(base_))) {}

void AlgorithmTable::install(AlgorithmSet set, int hosts) {
  Identity identity;
  identity.add(plans_).add(set.choose ? "chosen by a function" : "the first that fits");
  std::vector<std::shared_ptr<const Algorithm>> list;
  for (const UserAlgorithmPtr& algorithm : set.algorithms) {
    if (world_.ranks.ranks() == 1 || !for_these_ranks(*algorithm, hosts)) continue;  // a rank on its own runs none
    list.push_back(made(*algorithm));
    identity.add(algorithm->identity());
  }
  const bool empty = list.empty() && !set.choose;
  std::shared_ptr<const AlgorithmCollection> collection = base_;
  if (!list.empty() && !set.choose) {
    auto mine = std::make_shared<AlgorithmCollection>(*base_);
    mine->prefer(std::move(list));
    collection = std::move(mine);
  }
  auto selector = std::make_shared<const Selector>(make_selector_(std::move(collection)));
  identity_ = empty ? plans_ : fold(identity.value());
  choose_ = std::move(set.choose);
  const std::lock_guard lock(mutex_);
  selector_ = std::move(selector);
}

std::string AlgorithmTable::explain(const CallShape& shape) const { return hold_selector()->explain(shape); }

UserAlgorithmPtr AlgorithmTable::choose(const AlgorithmRequest& request) const { return choose_(request); }

// What the communicator's ranks and hosts rule out for good.
bool AlgorithmTable::for_these_ranks(const UserAlgorithm& algorithm, int hosts) const noexcept {
  const bool suits = algorithm.kind() == UserAlgorithm::Kind::kLibrary ||
                     (arenas_mapped_ && (algorithm.kind() == UserAlgorithm::Kind::kPlan || hosts == 1));
  return suits && algorithm.collective() && is_for_ranks(algorithm.limits(), world_.ranks.ranks(), hosts);
}

bool AlgorithmTable::suits(const UserAlgorithm& algorithm, const CallShape& shape) {
  if (!for_these_ranks(algorithm, shape.hosts)) return false;
  if (*algorithm.collective() != shape.collective || shape.uneven) return false;
  CallShape known = shape;
  const std::shared_ptr<const Algorithm> ready = made(algorithm);
  known.announced = !ready->announces();
  return ready->refusal(known) == nullptr;
}

void AlgorithmTable::check(const UserAlgorithm& algorithm, const CallShape& shape) {
  check_computes(algorithm, shape);
  const std::shared_ptr<const Algorithm> ready = made(algorithm);
  CallShape open = shape;
  // Whether tensors are mapped everywhere, and ranks read each other's, is known once all have announced the call.
  open.mapped_input = open.mapped_output = open.reads_across = true;
  open.announced = ready != nullptr && !ready->announces();
  refuse_named(algorithm, shape, ready != nullptr ? ready->refusal(open) : limits_refusal(algorithm.limits(), open));
}

std::shared_ptr<const Algorithm> AlgorithmTable::made(const UserAlgorithm& algorithm) {
  if (world_.ranks.ranks() == 1) return nullptr;
  const std::uint64_t identity = algorithm.identity();
  const std::lock_guard lock(mutex_);
  if (const auto found = made_.find(identity); found != made_.end()) return found->second.algorithm;
  if (algorithm.kind() != UserAlgorithm::Kind::kLibrary && !arenas_mapped_) {
    throw_error(ErrorKind::kUnsupported, "\"" + algorithm.name() +
                                             "\" needs ranks that map each other's memory: `tutti doctor` says why "
                                             "these do not");
  }
  const auto* source = dynamic_cast<const AlgorithmSource*>(&algorithm);
  if (source == nullptr) {
    throw_error(ErrorKind::kInvalidArgument, "\"" + algorithm.name() +
                                                 "\" is of a class that Tutti does not know: make it by "
                                                 "plan_algorithm, plugin_algorithms or library_algorithm");
  }
  auto ready = std::make_shared<const LimitedAlgorithm>(source->make(world_), algorithm.limits());
  made_.emplace(identity, Made{algorithm.name(), ready});
  return ready;
}

std::string AlgorithmTable::name_of(std::uint32_t folded) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [identity, made] : made_) {
    if (fold(identity) == folded) return made.name;
  }
  return {};
}

}  // namespace tutti
