// What a communicator may run: the library's algorithms, the plans of TUTTI_PLAN_PATH, and what the program has added.
//
// A user's algorithm is made for this communicator at its first use and kept for the communicator's life: its memory is
// known to the peers. Thread rule: made(), check(), explain() and name_of() from any thread; the rest under the
// communicator's run_mutex_.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "algorithm/collection.h"
#include "algorithm/group_place.h"
#include "tutti/user_algorithm.h"

namespace tutti {

class AlgorithmTable {
 public:
  using MakeSelector = std::function<Selector(std::shared_ptr<const AlgorithmCollection>)>;

  // `base`: the library's algorithms and the plans of TUTTI_PLAN_PATH, whose identity is `plans`. `arenas_mapped`: on
  // every host, each rank maps the arenas of all.
  AlgorithmTable(std::shared_ptr<const AlgorithmCollection> base, MakeSelector make_selector, GroupPlace world,
                 bool arenas_mapped, std::uint32_t plans);

  // Replaces what was installed before. Algorithms for other numbers of ranks, or for ranks on one host where there are
  // several, are left out. Throws Error naming one that cannot run; then nothing has changed.
  void install(AlgorithmSet set, int hosts);

  // What the choice follows from beside the call: ranks must agree on it. 0 where nobody has added anything.
  std::uint32_t identity() const noexcept { return identity_; }
  const Selector& selector() const noexcept { return *selector_; }  // under run_mutex_
  std::shared_ptr<const Selector> hold_selector() const {
    const std::lock_guard lock(mutex_);
    return selector_;
  }

  // What the program's selector function answers; null where it leaves the call to the library.
  bool chooses() const noexcept { return choose_ != nullptr; }
  UserAlgorithmPtr choose(const AlgorithmRequest& request) const;

  // Throws Error(kInvalidArgument, kUnsupported) if the algorithm cannot run a call of this shape here.
  void check(const UserAlgorithm& algorithm, const CallShape& shape);
  // Whether it may be taken for a call that does not ask for it. Its number of ranks a host counts here: it says for
  // what the algorithm is good, not where it is right.
  bool suits(const UserAlgorithm& algorithm, const CallShape& shape);
  // Null where a rank is alone: nothing has to be run. Throws Error as UserAlgorithm::make().
  std::shared_ptr<const Algorithm> made(const UserAlgorithm& algorithm);

  std::string explain(const CallShape& shape) const;

  // The name of a user's algorithm by what a record says of it; empty if this rank has never had it.
  std::string name_of(std::uint32_t folded) const;

 private:
  bool for_these_ranks(const UserAlgorithm& algorithm, int hosts) const noexcept;

  struct Made {
    std::string name;
    std::shared_ptr<const Algorithm> algorithm;
  };

  const std::shared_ptr<const AlgorithmCollection> base_;
  const MakeSelector make_selector_;
  const GroupPlace world_;
  const bool arenas_mapped_;
  const std::uint32_t plans_;

  std::uint32_t identity_;
  std::function<UserAlgorithmPtr(const AlgorithmRequest&)> choose_;

  mutable std::mutex mutex_;                  // guards what follows; a leaf
  std::shared_ptr<const Selector> selector_;  // written under run_mutex_ too, so read under either
  std::map<std::uint64_t, Made> made_;        // by identity
};

}  // namespace tutti
