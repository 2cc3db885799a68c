#include "nccl/calls.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "nccl/communicators.h"
#include "nccl/error_codes.h"
#include "nccl/pending.h"
#include "nccl/real_library.h"
#include "nccl/report.h"

namespace tutti::nccl {
namespace {

struct Queued {
  std::shared_ptr<Served> served;
  Arguments call;
  std::uint64_t plan = 0;  // that runs it; 0: a kernel of Tutti's own
  bool left_out = false;   // an earlier call of its communicator has failed in the same group of calls
};

struct Held {
  std::vector<Queued> calls;
  std::vector<Making> making;
};
// Without a destructor: those of the program's threads and of its static objects come here, too. What a thread leaves
// open when it ends stays.
struct Group {
  int depth = 0;
  Held* held = nullptr;  // while there is something

  Held& hold() {
    if (held == nullptr) held = new Held;
    return *held;
  }
  Held take() noexcept {
    const std::unique_ptr<Held> taken(std::exchange(held, nullptr));
    return taken != nullptr ? std::move(*taken) : Held{};
  }
};
constinit thread_local Group group;
static_assert(std::is_trivially_destructible_v<Group>);

ncclResult_t issue(const Queued& queued) noexcept {
  CudaCommunicator& cuda = *queued.served->cuda;
  const Arguments& from = queued.call;
  return guarded([&] { cuda.run_as(queued.plan, to_call(from, cuda.rank(), cuda.size()), from.stream); });
}

// To the other ranks the next call of this communicator would be the one that has failed here: it may look the same,
// and they would take its data without an error. So none is issued, and the watchdogs of the others find the
// communicator aborted. So they do where the last of several has failed: the group of calls returns one error, and a
// program that made it again would begin with the first.
void give_up_after(const Queued& failed, std::vector<Queued>& calls) noexcept {
  bool alone = true;
  for (Queued& each : calls) {
    if (&each == &failed || each.served != failed.served) continue;
    alone = false;
    each.left_out = each.left_out || &each > &failed;
  }
  if (alone) return;  // as a call in no group: the program knows which one has failed
  CudaCommunicator& cuda = *failed.served->cuda;
  try {
    cuda.abort(std::string("a call of this rank has failed in a group of calls: ") + last_error());
  } catch (const std::bad_alloc&) {
    cuda.abort("");
  }
}

// The program's plan that the call takes, if any.
std::uint64_t plan_for(const Arguments& call, const Served& served) {
  if (!served.common.plans) return 0;
  const CudaCommunicator& cuda = *served.cuda;
  return cuda.plan_for(to_call(call, cuda.rank(), cuda.size()));
}

// Of several GPUs of this thread's: the first call of each, then the second of each. What one call's kernel waits for
// on another GPU is then behind one call there at most, and no queue of launches fills up before the rank that would
// empty it. On each GPU the calls keep their order, as if it had a process of its own.
std::vector<Queued> by_turns(const std::vector<Queued>& calls) {
  std::map<int, std::size_t> issued;
  std::vector<std::pair<std::size_t, std::size_t>> order;  // turn, place
  for (std::size_t i = 0; i < calls.size(); ++i) order.emplace_back(issued[calls[i].served->cuda->device()]++, i);
  if (issued.size() < 2) return calls;
  std::sort(order.begin(), order.end());
  std::vector<Queued> sorted;
  for (const auto& [turn, place] : order) sorted.push_back(calls[place]);
  return sorted;
}

}  // namespace

bool take_call(const Arguments& asked, ncclResult_t& result) noexcept {
  const std::shared_ptr<Served> served = find(asked.comm);
  Arguments call = asked;
  // Now, as NCCL does: a queued call keeps the scalar of an operation that is destroyed before it is issued.
  if (served != nullptr && call.op > ncclAvg) call.scaled = served->scaled->find(call.op);
  const bool message = call.function == Function::kSend || call.function == Function::kReceive;
  if (!message && !may_call(call.comm, served)) {
    set_last_error("tutti: the communicator is in progress: ask ncclCommGetAsyncError until it is not");
    result = ncclInvalidArgument;
    return true;
  }
  Reason reason = Reason::kCommunicator;
  Queued queued{served, call};
  if (message) {
    reason = Reason::kMessage;
  } else if (served != nullptr && served->cuda != nullptr) {
    reason = decide(call, served->common);
    if (reason == Reason::kNone) {
      // Here and not where it is issued: a selector function of the program's is asked once a call.
      result = guarded([&] { queued.plan = plan_for(call, *served); });
      if (result != ncclSuccess) return true;
      if (queued.plan == 0) reason = decide_without_plan(call, served->common);
    }
  }
  count_call(call.function, reason, served != nullptr ? message_bytes(call, std::max(served->common.size, 1)) : 0,
             queued.plan != 0);
  if (reason != Reason::kNone) return false;
  if (group.depth > 0) {
    // What is wrong with a call is said at once, what goes wrong with it at the end.
    result = guarded([&] {
      const CudaCommunicator& cuda = *served->cuda;
      cuda.check(to_call(call, cuda.rank(), cuda.size()));
      group.hold().calls.push_back(std::move(queued));
    });
  } else {
    result = issue(queued);
  }
  return true;
}

void made(std::vector<Making> making) noexcept {
  if (group.depth == 0) return adopt_all(making);
  quietly([&] {
    std::vector<Making>& all = group.hold().making;
    all.insert(all.end(), making.begin(), making.end());
  });
}

ncclResult_t group_start() noexcept {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclGroupStart, ());
  if (result == ncclSuccess) ++group.depth;
  return result;
}

ncclResult_t group_end() noexcept {
  if (group.depth == 0 || --group.depth > 0) return TUTTI_NCCL_PASS(ncclGroupEnd, ());
  auto [calls, making] = group.take();
  ncclResult_t first = guarded([&, &calls = calls] { calls = by_turns(calls); });  // as they came, if memory is wanting
  // Those of other communicators, whatever becomes of one: their ranks wait for this one in each.
  for (const Queued& queued : calls) {
    if (queued.left_out) continue;
    const ncclResult_t result = issue(queued);
    if (result != ncclSuccess) give_up_after(queued, calls);
    if (first == ncclSuccess) first = result;
  }
  // The real group is ended in any case, but its success does not hide our failure.
  const ncclResult_t rest = TUTTI_NCCL_PASS(ncclGroupEnd, ());
  if (rest == ncclSuccess || rest == ncclInProgress) {
    for (Making& each : making) each.blocks = each.blocks && rest == ncclSuccess;
    if (!making.empty()) adopt_all(making);
  }
  return first != ncclSuccess ? first : rest;
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) noexcept {
  if (real().ncclGroupSimulateEnd == nullptr) return missing("ncclGroupSimulateEnd");  // and the group goes on
  if (info == nullptr) return group_end();                                             // to NCCL it is the same
  if (group.depth > 0 && --group.depth == 0) group.take();
  return TUTTI_NCCL_PASS(ncclGroupSimulateEnd, (info));
}

}  // namespace tutti::nccl
