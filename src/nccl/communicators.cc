#include "nccl/communicators.h"

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "base/registry.h"
#include "nccl/background.h"
#include "nccl/forming.h"
#include "nccl/pending.h"
#include "nccl/report.h"
#include "tutti/error.h"

namespace tutti::nccl {
namespace {

constexpr int kMostRanks = 8;

struct Table {
  std::shared_mutex mutex;
  std::unordered_map<ncclComm_t, std::shared_ptr<Served>> served;
};
// Never destroyed: calls may come from other libraries' destructors.
Table& table() {
  static Table* const value = new Table;
  return *value;
}

void count(const Served& served) {
  count_communicator(served.cuda != nullptr ? served.cuda->transport() : std::string(), served.reason);
}

// What is being formed in the background ends without a group.
void give_up(const std::shared_ptr<Served>& served) noexcept {
  // release: pairs with the acquire in form().
  if (served != nullptr && served->pending != nullptr) served->pending->given_up.store(true, std::memory_order_release);
}

std::shared_ptr<Served> take(ncclComm_t comm, bool frees) {
  if (forked_child()) return nullptr;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.served.find(comm);
  if (found == all.served.end()) return nullptr;
  std::shared_ptr<Served> served = std::move(found->second);
  served->freed = frees;
  all.served.erase(found);
  return served;
}

// A circle that has not agreed is kept all the same: others may still have to ask its store.
void form_and_keep(ncclComm_t comm, std::shared_ptr<Served> served, const Given& given, const char* against) {
  int device = -1;
  std::string refusal = refusal_of(comm, served->circle->rank(), served->circle->size(), device);
  if (refusal.empty() && against != nullptr) refusal = against;
  if (refusal.empty()) refusal = given.problem;
  form(*served, refusal, device, given.algorithms, {});
  keep(comm, std::move(served));
}

}  // namespace

std::shared_ptr<Served> find(ncclComm_t comm) {
  // What the parent had is not the child's, nor is its lock.
  if (forked_child()) return nullptr;
  Table& all = table();
  const std::shared_lock lock(all.mutex);
  const auto found = all.served.find(comm);
  return found != all.served.end() ? found->second : nullptr;
}

void keep(ncclComm_t comm, std::shared_ptr<Served> served) {
  if (served->pending == nullptr) count(*served);
  Table& all = table();
  std::shared_ptr<Served> before;  // ends behind the lock
  const std::lock_guard lock(all.mutex);
  std::shared_ptr<Served>& place = all.served[comm];
  before = std::move(place);
  place = std::move(served);
}

bool replace(ncclComm_t comm, const std::shared_ptr<Served>& before, std::shared_ptr<Served> after) {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.served.find(comm);
  if (found == all.served.end() || found->second != before) return false;
  if (after == nullptr) {
    all.served.erase(found);
  } else {
    if (after->pending == nullptr && !after->failure) count(*after);
    found->second = std::move(after);
  }
  return true;
}

void adopt_without(ncclComm_t comm, const std::string& reason) {
  if (comm == nullptr) return;
  auto served = std::make_shared<Served>();
  served->reason = reason;
  keep(comm, std::move(served));
}

bool adopted_unmet(ncclComm_t comm, const std::optional<MeetingPlace>& place, int size) {
  if (size == 1 || size > kMostRanks) {
    // As on all ranks, so nobody meets; its parts are NCCL's, too.
    if (place) take_offer(*place);
    adopt_without(comm, size == 1 ? "a single rank" : "more than " + std::to_string(kMostRanks) + " ranks");
    return true;
  }
  if (!place) adopt_without(comm, "its unique id has no room for Tutti's address, or comes from NCCL_COMM_ID");
  return !place;
}

void adopt(ncclComm_t comm, const std::optional<MeetingPlace>& place, int rank, int size, const Given& given,
           const char* against) {
  if (comm == nullptr || adopted_unmet(comm, place, size)) return;
  auto served = std::make_shared<Served>();
  try {
    served->circle = std::make_unique<Circle>(*place, rank, size);
  } catch (const std::exception& e) {
    return adopt_without(comm, e.what());
  }
  form_and_keep(comm, std::move(served), given, against);
}

namespace {

void adopt_part(std::unique_ptr<Circle> circle, ncclComm_t comm, const Given& given, const char* against) {
  if (comm == nullptr) return;
  if (circle == nullptr) {
    return adopt_without(comm, against != nullptr ? against : "it was split from one whose ranks had not agreed");
  }
  if (circle->size() == 1) return adopt_without(comm, "a single rank");
  auto served = std::make_shared<Served>();
  served->circle = std::move(circle);
  form_and_keep(comm, std::move(served), given, against);
}

}  // namespace

void adopt_split(ncclComm_t parent, int color, int key, ncclComm_t comm, const Given& given, const char* against) {
  const std::shared_ptr<Served> from = find(parent);
  if (from == nullptr || from->circle == nullptr) return adopt_part(nullptr, comm, given, against);
  adopt_part(from->circle->split(color, key, against != nullptr), comm, given, against);
  // This rank may have no part, or be done with its own, and end, or give up the parent.
  from->circle->await_leaving();
}

std::optional<Error> failure_of(ncclComm_t comm) {
  const std::shared_ptr<Served> served = find(comm);
  if (served == nullptr) return std::nullopt;
  return served->cuda != nullptr ? served->cuda->failure() : served->failure;
}

bool end_group(ncclComm_t comm, const std::shared_ptr<Served>& served) {
  if (served->cuda != nullptr) served->cuda->finish();
  std::shared_ptr<Served> after;
  if (const auto failure = served->cuda != nullptr ? served->cuda->failure() : std::nullopt) {
    after = std::make_shared<Served>();
    after->reason = "finalized";
    after->failure = failure;
    after->blocks = served->blocks;
  }
  replace(comm, served, std::move(after));
  return !served->freed;
}

void drop(ncclComm_t comm) {
  // Until nothing is known of it: what forms in the background may have come between.
  while (const std::shared_ptr<Served> served = find(comm)) {
    give_up(served);
    if (served->cuda != nullptr) served->cuda->finish();
    replace(comm, served, nullptr);
  }
}

std::shared_ptr<Served> abort(ncclComm_t comm, const char* call, bool frees) {
  std::shared_ptr<Served> served = take(comm, frees);
  give_up(served);
  if (served != nullptr && served->cuda != nullptr) served->cuda->abort(call);
  return served;
}

std::shared_ptr<Served> abort_group(ncclComm_t comm, const char* call) {
  if (find(comm) == nullptr) return nullptr;
  std::shared_ptr<Served> served = abort(comm, call, /*frees=*/false);
  auto after = std::make_shared<Served>();
  after->reason = std::string("given up by ") + call;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  all.served[comm] = std::move(after);
  return served;
}

void let_go(std::shared_ptr<Served> aborted) noexcept {
  if (aborted == nullptr || aborted->cuda == nullptr) return;
  // Moved on, so that the thread has the last reference. Without a thread it ends here: NCCL's kernels are over, too.
  in_background([held = std::move(aborted)]() mutable {
    begin_thread(held->cuda->device());
    held.reset();
  });
}

}  // namespace tutti::nccl
