#include "nccl/calls.h"

#include <memory>
#include <utility>
#include <vector>

#include "nccl/communicators.h"
#include "nccl/driver.h"
#include "nccl/error_codes.h"
#include "nccl/real_library.h"
#include "nccl/report.h"

namespace tutti::nccl {
namespace {

struct Queued {
  std::shared_ptr<Served> served;
  Arguments call;
};

struct Group {
  int depth = 0;
  std::vector<Queued> calls;
  std::vector<Making> making;
};
Group& group() {
  static thread_local Group value;
  return value;
}

ncclResult_t issue(const Served& served, const Arguments& from) noexcept {
  CudaCommunicator& cuda = *served.cuda;
  return guarded([&] {
    cuda.run(to_call(from, cuda.rank(), cuda.size()), from.stream);
    // NCCL's root may broadcast from one buffer and want the result in another.
    if (from.function == Function::kBroadcast && cuda.rank() == from.root && from.send != from.recv) {
      driver()->copy(cuda.device(), from.recv, from.send, message_bytes(from, cuda.size()), from.stream);
    }
  });
}

void adopt_made(const Making& making, bool in_company) {
  const ncclComm_t comm = making.comm != nullptr ? *making.comm : nullptr;
  if (making.without != nullptr) {
    adopt_without(comm, making.without);
  } else if (making.parent != nullptr) {
    adopt_split(making.parent, making.color, making.key, comm, in_company);
  } else {
    adopt(comm, making.id, making.rank, making.size, in_company);
  }
}

}  // namespace

bool take_call(const Arguments& asked, ncclResult_t& result) noexcept {
  const std::shared_ptr<Served> served = find(asked.comm);
  Arguments call = asked;
  // Now, as NCCL does: a queued call keeps the scalar of an operation that is destroyed before it is issued.
  if (served != nullptr && call.op > ncclAvg) call.scaled = served->scaled.find(call.op);
  Reason reason = Reason::kCommunicator;
  if (call.function == Function::kSend || call.function == Function::kReceive) {
    reason = Reason::kMessage;
  } else if (served != nullptr && served->cuda != nullptr) {
    reason = decide(call, served->common);
  }
  count_call(call.function, reason, served != nullptr ? message_bytes(call, std::max(served->common.size, 1)) : 0);
  if (reason != Reason::kNone) return false;
  Group& open = group();
  if (open.depth > 0) {
    // What is wrong with a call is said at once, what goes wrong with it at the end.
    result = guarded([&] {
      const CudaCommunicator& cuda = *served->cuda;
      cuda.check(to_call(call, cuda.rank(), cuda.size()));
      open.calls.push_back({served, call});
    });
  } else {
    result = issue(*served, call);
  }
  return true;
}

void made(const Making& making) noexcept {
  static_cast<void>(guarded([&] {
    Group& open = group();
    if (open.depth > 0) {
      open.making.push_back(making);
    } else {
      adopt_made(making, /*in_company=*/false);
    }
  }));
}

ncclResult_t group_start() noexcept {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclGroupStart, ());
  if (result == ncclSuccess) ++group().depth;
  return result;
}

ncclResult_t group_end() noexcept {
  Group& open = group();
  if (open.depth == 0 || --open.depth > 0) return TUTTI_NCCL_PASS(ncclGroupEnd, ());
  const std::vector<Queued> calls = std::exchange(open.calls, {});
  const std::vector<Making> making = std::exchange(open.making, {});
  ncclResult_t first = ncclSuccess;
  // All of them, whatever becomes of one: other ranks, of other communicators perhaps, wait for this one in each.
  for (const Queued& queued : calls) {
    const ncclResult_t result = issue(*queued.served, queued.call);
    if (first == ncclSuccess) first = result;
  }
  // The real group is ended in any case, but its success does not hide our failure.
  const ncclResult_t rest = TUTTI_NCCL_PASS(ncclGroupEnd, ());
  if (rest == ncclSuccess || rest == ncclInProgress) {
    for (const Making& each : making) {
      static_cast<void>(guarded([&] { adopt_made(each, making.size() > 1); }));
    }
  }
  return first != ncclSuccess ? first : rest;
}

ncclResult_t group_simulate_end(ncclSimInfo_t* info) noexcept {
  if (real().ncclGroupSimulateEnd == nullptr) return missing("ncclGroupSimulateEnd");  // and the group goes on
  Group& open = group();
  if (open.depth > 0 && --open.depth == 0) {
    open.calls.clear();
    open.making.clear();
  }
  return TUTTI_NCCL_PASS(ncclGroupSimulateEnd, (info));
}

}  // namespace tutti::nccl
