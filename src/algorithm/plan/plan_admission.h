// Whether the executor can run a plan where the ranks of a group lie: tried when a group is made, once a process.
//
// A plan that is right may still be too large for the executor, or need memory channels between hosts. To find out, the
// plan is decoded as a runner would (plan_runner.h), which takes longer than all else that makes a group. The answer
// depends on the plan, on who lies where, and on the size of segments, so a later group takes it from here, and a
// runner is made when a plan is called.
//
// Thread rule: any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "algorithm/group_place.h"
#include "plan/plan.h"
#include "tutti/error.h"

namespace tutti {

class PlanAdmissions {
 public:
  // The one of this process.
  static PlanAdmissions& of_process();

  // Throws the Error that a runner's constructor would throw.
  void check(const std::shared_ptr<const plan::Plan>& plan, const GroupPlace& world);

  // How often a plan has been decoded for this, since the process began.
  std::uint64_t trials() const;

 private:
  struct Place {
    int rank = 0;
    bool crowded = false;
    RankMap ranks;

    std::strong_ordering operator<=>(const Place&) const = default;
  };
  struct Verdict {
    ErrorKind kind = ErrorKind::kUnsupported;
    std::string fault;  // empty: it runs
  };

  bool find(const std::shared_ptr<const plan::Plan>& plan, const Place& place, Verdict& verdict) const;
  void remember(const std::shared_ptr<const plan::Plan>& plan, Place place, const Verdict& verdict);

  mutable std::mutex mutex_;  // guards all below; a leaf
  // Of plans that somebody holds. By owner and not by address, which another plan may have later.
  std::map<std::weak_ptr<const plan::Plan>, std::map<Place, Verdict>, std::owner_less<>> verdicts_;
  std::uint64_t trials_ = 0;
};

}  // namespace tutti
