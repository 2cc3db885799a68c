#include "communicator/subgroup.h"

#include <algorithm>
#include <new>

#include "base/no_memory.h"
#include "base/registry.h"
#include "bootstrap/exchange.h"
#include "communicator/communicator_impl.h"
#include "communicator/group_store.h"

namespace tutti {
namespace {

std::shared_ptr<CommunicatorImpl> shared(Communicator& group) {
  return dynamic_cast<CommunicatorImpl&>(group).shared_from_this();
}

void check_members(const Communicator& group, const std::vector<int>& members) {
  std::vector<int> sorted = members;
  std::ranges::sort(sorted);
  const bool twice = std::ranges::adjacent_find(sorted) != sorted.end();
  const bool strange = !sorted.empty() && (sorted.front() < 0 || sorted.back() >= group.size());
  if (!twice && !strange && std::ranges::binary_search(sorted, group.rank())) return;
  throw_error(ErrorKind::kInvalidArgument, "a group in group '" + group.name() + "' of " +
                                               std::to_string(group.size()) + " takes ranks of it, each once, rank " +
                                               std::to_string(group.rank()) + ", which asks for it, among them");
}

}  // namespace

bool can_form_in(Communicator& group, const std::vector<int>& members) {
  check_members(group, members);
  if (forked_child()) return false;
  auto& own = dynamic_cast<CommunicatorImpl&>(group);
  Outcome gone, failed;
  for (const int member : members) {
    const Outcome outcome = member != group.rank() ? own.look_at(member) : kOkOutcome;
    const bool ended = outcome.status == Status::kPeerLost || outcome.status == Status::kPeerLeft;
    Outcome& found = ended && std::ranges::find(members, outcome.peer) != members.end() ? gone : failed;
    if (found.ok()) found = outcome;
  }
  if (!group.failure()) {
    if (!gone.ok() || failed.ok()) return true;  // one that is gone is found in the course of it, by all
    own.fail_by(failed, "while a group in it was forming, ");
  }
  if (gone.ok()) return false;
  throw_error(ErrorKind::kPeerLost, "rank " + std::to_string(gone.peer) + " of group '" + group.name() +
                                        "' has ended: no group can form with it");
}

std::shared_ptr<Communicator> form_in(Communicator& group, const std::vector<int>& members, const std::string& id,
                                      const std::function<CommunicatorOptions()>& settings) {
  const auto form = [&] {
    check_members(group, members);
    GroupStore store(shared(group), members, id);
    const int rank = store.rank();
    const auto options = telling(store, id, rank, settings);
    const auto made = Communicator::create(store, id, rank, store.size(), options);
    dynamic_cast<CommunicatorImpl&>(*made).join_family_of(dynamic_cast<CommunicatorImpl&>(group), members);
    telling(store, id, rank, [&] { store.end(options.timeout); });
    return made;
  };
  try {
    return form();
  } catch (const std::bad_alloc&) {
    const Error want =
        no_memory([&] { return "rank " + std::to_string(group.rank()) + " has no memory to form '" + id + "'"; });
    tell_in(group, members, id, want);
    throw Error(want);
  }
}

void tell_in(Communicator& group, const std::vector<int>& members, const std::string& id,
             const std::exception& why) noexcept {
  try {
    GroupStore store(shared(group), members, id);
    tell_failure(store, id, store.rank(), why);
  } catch (const std::exception&) {
    // Then the others learn of it at their deadline.
  }
}

}  // namespace tutti
