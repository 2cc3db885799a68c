// Algorithms that the program names, for one call or for many.
#include <utility>

#include "communicator/communicator_impl.h"
#include "communicator/named_algorithm.h"

namespace tutti {

void CommunicatorImpl::set_algorithms(AlgorithmSet set) {
  throw_if_unusable();
  throw_if_running_here("set_algorithms");
  if (!queue_.drain(timeout())) {
    throw_error(ErrorKind::kTimeout, "set_algorithms: calls of group '" + options_.name + "' are still under way");
  }
  Deadline deadline = Deadline::after(timeout());
  const auto turn = take_turn("set_algorithms", deadline);
  algorithms_.install(std::move(set), formed_.ranks.hosts());
}

void CommunicatorImpl::check_choice(const Call& call) const {
  algorithms_.check(*call.choice->algorithm, shape_of(call));
}

// Before anything is sent: what the selector function raises is the caller's, and the group stays usable.
UserAlgorithmPtr CommunicatorImpl::chosen_for(const Call& call) const {
  if (call.choice != nullptr) return call.choice->algorithm;
  if (!algorithms_.chooses() || size_ == 1 || call.uneven || call.collective == Collective::kBarrier) return nullptr;
  const CallShape shape = shape_of(call);
  UserAlgorithmPtr chosen = algorithms_.choose(request_of(call, shape, rank_));
  return chosen != nullptr && algorithms_.suits(*chosen, shape) ? chosen : nullptr;
}

}  // namespace tutti
