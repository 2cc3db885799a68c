// The functions of NCCL that are looked at before they are passed on.
//
// What the real library calls by its own public names comes here, too, and goes straight back (InReal).
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "nccl/calls.h"
#include "nccl/circle.h"
#include "nccl/communicators.h"
#include "nccl/error_codes.h"
#include "nccl/pending.h"
#include "nccl/real_library.h"
#include "nccl/report.h"
#include "nccl/settings.h"
#include "nccl/unique_id.h"

#define TUTTI_NCCL_EXPORT extern "C" __attribute__((visibility("default")))

namespace {

using namespace tutti::nccl;

// The library is to do more than pass calls on.
bool looks() noexcept { return !InReal::here() && settings().on; }

// A collective: ours, or the real library's by `pass_on`.
template <class PassOn>
ncclResult_t collective(const Arguments& call, PassOn&& pass_on) noexcept {
  ncclResult_t result = ncclSuccess;
  if (looks() && take_call(call, result)) return result;
  return pass_on();
}

// After the real library has made a communicator, or will at the end of the group.
ncclResult_t making(ncclResult_t result, Making what) noexcept {
  what.blocks = what.blocks && result == ncclSuccess;
  if (looks() && (result == ncclSuccess || result == ncclInProgress)) made({what});
  return result;
}

Making by_id(ncclComm_t* comm, int size, const ncclUniqueId& id, int rank, const ncclConfig_t* config) noexcept {
  Making what;
  what.blocks = blocks(config, /*otherwise=*/true);
  what.comm = comm;
  what.size = size;
  what.place = read_place(id);
  what.rank = rank;
  return what;
}

Making left(ncclComm_t* comm, const char* reason) noexcept {
  Making what;
  what.comm = comm;
  what.without = reason;
  return what;
}

// The real library's call, by `pass_on`, that ends its kernels: those of `aborted` may be behind them, and are waited
// for only after it, beside the program.
template <class PassOn>
ncclResult_t ending(std::shared_ptr<Served> aborted, PassOn&& pass_on) noexcept {
  const ncclResult_t result = pass_on();
  let_go(std::move(aborted));
  return result;
}

// What has gone wrong in Tutti's part, with its text for ncclGetLastError.
ncclResult_t failed(ncclComm_t comm) noexcept {
  return guarded([&] {
    if (const auto failure = failure_of(comm)) throw tutti::Error(*failure);
  });
}

}  // namespace

// Unique ids and communicators

TUTTI_NCCL_EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclGetUniqueId, (id));
  // Without a place the communicator is NCCL's alone.
  if (result == ncclSuccess && looks()) quietly([&] { offer_place(*id); });
  return result;
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  // First: it puts what its files say into the environment.
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommInitRank, (comm, ranks, id, rank));
  return making(result, by_id(comm, ranks, id, rank, nullptr));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank,
                                                      ncclConfig_t* config) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommInitRankConfig, (comm, ranks, id, rank, config));
  return making(result, by_id(comm, ranks, id, rank, config));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids,
                                                        ncclUniqueId* id, ncclConfig_t* config) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommInitRankScalable, (comm, ranks, rank, ids, id, config));
  if (result != ncclSuccess && result != ncclInProgress) return result;
  // All ranks give the same ids: they meet at the first.
  if (looks()) {
    quietly([&] {
      for (int i = 1; i < ids; ++i) {
        if (std::memcmp(&id[i], &id[0], sizeof(ncclUniqueId)) != 0) withdraw_place(id[i]);
      }
    });
  }
  return making(result, by_id(comm, ranks, id[0], rank, config));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* comm, int devices, const int* list) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommInitAll, (comm, devices, list));
  if (!looks() || (result != ncclSuccess && result != ncclInProgress)) return result;
  quietly([&] {
    // All of its ranks are here.
    const tutti::MeetingPlace place = tutti::offer_meeting_place("127.0.0.1");
    std::vector<Making> ranks;
    for (int d = 0; d < devices; ++d) {
      Making& each = ranks.emplace_back();
      each.comm = comm + d;
      each.rank = d;
      each.size = devices;
      each.place = place;
      each.blocks = result == ncclSuccess && blocks(nullptr, /*otherwise=*/true);
    }
    made(std::move(ranks));
  });
  return result;
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm,
                                             ncclConfig_t* config) {
  Making what;
  what.comm = comm;
  what.parent = parent;
  what.color = color;
  what.key = key;
  const auto from = looks() ? find(parent) : nullptr;
  what.blocks = blocks(config, from == nullptr || from->blocks);
  return making(TUTTI_NCCL_PASS(ncclCommSplit, (parent, color, key, comm, config)), what);
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommShrink(ncclComm_t parent, int* excluded, int count, ncclComm_t* comm,
                                              ncclConfig_t* config, int flags) {
  constexpr int kAbort = 1;
  const bool aborts = looks() && (flags & kAbort) != 0 && real().ncclCommShrink != nullptr;
  const ncclResult_t result = ending(aborts ? abort_group(parent, "ncclCommShrink") : nullptr, [&] {
    return TUTTI_NCCL_PASS(ncclCommShrink, (parent, excluded, count, comm, config, flags));
  });
  return making(result, left(comm, "made by ncclCommShrink"));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommGrow(ncclComm_t parent, int ranks, const ncclUniqueId* id, int rank,
                                            ncclComm_t* comm, ncclConfig_t* config) {
  return making(TUTTI_NCCL_PASS(ncclCommGrow, (parent, ranks, id, rank, comm, config)),
                left(comm, "made by ncclCommGrow"));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  bool there = true;
  if (looks()) quietly([&] { there = finalize(comm); });
  if (!there) {
    return guarded([] {
      throw tutti::Error(tutti::ErrorKind::kAborted,
                         "ncclCommFinalize: the communicator was aborted meanwhile: make another");
    });
  }
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommFinalize, (comm));
  return result == ncclSuccess && looks() ? failed(comm) : result;
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  // First: once it is gone, another one may have its address.
  if (looks()) drop(comm);
  return TUTTI_NCCL_PASS(ncclCommDestroy, (comm));
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return ending(looks() ? tutti::nccl::abort(comm, "ncclCommAbort", /*frees=*/true) : nullptr,
                [&] { return TUTTI_NCCL_PASS(ncclCommAbort, (comm)); });
}

TUTTI_NCCL_EXPORT ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags) {
  // What NCCL refuses changes nothing: flags, and a communicator that has been finalized.
  const bool goes_on = looks() && flags == 0 && real().ncclCommRevoke != nullptr;
  return ending(goes_on && !ends(comm) ? abort_group(comm, "ncclCommRevoke") : nullptr,
                [&] { return TUTTI_NCCL_PASS(ncclCommRevoke, (comm, flags)); });
}

// Errors

TUTTI_NCCL_EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclCommGetAsyncError, (comm, error));
  // What it says goes with NCCL's own text.
  if (result == ncclSuccess && *error != ncclSuccess && *error != ncclInProgress) clear_last_error();
  if (result != ncclSuccess || *error != ncclSuccess || !looks()) return result;
  quietly([&] {
    const auto served = find(comm);
    if (!ready(comm, served)) {
      *error = ncclInProgress;
      return;
    }
    *error = failed(comm);
  });
  return result;
}

TUTTI_NCCL_EXPORT const char* ncclGetLastError(ncclComm_t comm) {
  if (!InReal::here()) {
    failed(comm);
    if (const char* const text = last_error()) return text;
  }
  return TUTTI_NCCL_PASS(ncclGetLastError, (comm));
}

TUTTI_NCCL_EXPORT const char* ncclGetErrorString(ncclResult_t result) {
  if (real().ncclGetErrorString == nullptr) return "error of NCCL (its library was not found)";
  return TUTTI_NCCL_PASS(ncclGetErrorString, (result));
}

// Groups of calls

TUTTI_NCCL_EXPORT ncclResult_t ncclGroupStart() {
  return looks() ? group_start() : TUTTI_NCCL_PASS(ncclGroupStart, ());
}

TUTTI_NCCL_EXPORT ncclResult_t ncclGroupEnd() { return looks() ? group_end() : TUTTI_NCCL_PASS(ncclGroupEnd, ()); }

TUTTI_NCCL_EXPORT ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info) {
  return looks() ? group_simulate_end(info) : TUTTI_NCCL_PASS(ncclGroupSimulateEnd, (info));
}

// Operations of the program's own: known after NCCL has made them.

TUTTI_NCCL_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                                        ncclScalarResidence_t place, ncclComm_t comm) {
  const ncclResult_t result = TUTTI_NCCL_PASS(ncclRedOpCreatePreMulSum, (op, scalar, type, place, comm));
  if (result != ncclSuccess || !looks()) return result;
  quietly([&] {
    const auto served = find(comm);
    const auto scaled = served != nullptr ? scaled_of(scalar, type, place) : std::nullopt;
    if (scaled) served->scaled->add(*op, *scaled);
  });
  return result;
}

TUTTI_NCCL_EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  // First: once it is gone, another one may have its number.
  if (looks()) {
    if (const auto served = find(comm)) served->scaled->remove(op);
  }
  return TUTTI_NCCL_PASS(ncclRedOpDestroy, (op, comm));
}

// Collectives. Options of a call's own are for NCCL; a null pointer means none.

// clang-format off
#define TUTTI_NCCL_COLLECTIVE(kind, name, extra, extra_names, op, root)                                              \
  TUTTI_NCCL_EXPORT ncclResult_t name(const void* send, void* recv, size_t count,                                    \
                                      ncclDataType_t type TUTTI_NCCL_WITH extra, ncclComm_t comm,                    \
                                      cudaStream_t stream) {                                                         \
    return collective({Function::kind, send, recv, count, type, op, root, comm, stream, false, {}}, [&] {            \
      return TUTTI_NCCL_PASS(name, (send, recv, count, type TUTTI_NCCL_WITH extra_names, comm, stream));             \
    });                                                                                                              \
  }                                                                                                                  \
  TUTTI_NCCL_EXPORT ncclResult_t name##Config(const void* send, void* recv, size_t count,                            \
                                              ncclDataType_t type TUTTI_NCCL_WITH extra, ncclComm_t comm,            \
                                              cudaStream_t stream, const ncclCollConfig_t* config) {                 \
    return collective({Function::kind, send, recv, count, type, op, root, comm, stream, config != nullptr, {}}, [&] {\
      return TUTTI_NCCL_PASS(name##Config,                                                                           \
                             (send, recv, count, type TUTTI_NCCL_WITH extra_names, comm, stream, config));           \
    });                                                                                                              \
  }
// clang-format on

TUTTI_NCCL_COLLECTIVE(kAllReduce, ncclAllReduce, (ncclRedOp_t op), (op), op, -1)
TUTTI_NCCL_COLLECTIVE(kBroadcast, ncclBroadcast, (int root), (root), ncclSum, root)
TUTTI_NCCL_COLLECTIVE(kReduce, ncclReduce, (ncclRedOp_t op, int root), (op, root), op, root)
TUTTI_NCCL_COLLECTIVE(kAllGather, ncclAllGather, (), (), ncclSum, -1)
TUTTI_NCCL_COLLECTIVE(kReduceScatter, ncclReduceScatter, (ncclRedOp_t op), (op), op, -1)
TUTTI_NCCL_COLLECTIVE(kAllToAll, ncclAlltoAll, (), (), ncclSum, -1)
TUTTI_NCCL_COLLECTIVE(kGather, ncclGather, (int root), (root), ncclSum, root)
TUTTI_NCCL_COLLECTIVE(kScatter, ncclScatter, (int root), (root), ncclSum, root)

TUTTI_NCCL_EXPORT ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                                         cudaStream_t stream) {
  return collective({Function::kBroadcast, data, data, count, type, ncclSum, root, comm, stream, false, {}},
                    [&] { return TUTTI_NCCL_PASS(ncclBcast, (data, count, type, root, comm, stream)); });
}

TUTTI_NCCL_EXPORT ncclResult_t ncclSend(const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                        cudaStream_t stream) {
  return collective({Function::kSend, data, nullptr, count, type, ncclSum, -1, comm, stream, false, {}},
                    [&] { return TUTTI_NCCL_PASS(ncclSend, (data, count, type, peer, comm, stream)); });
}

TUTTI_NCCL_EXPORT ncclResult_t ncclRecv(void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                                        cudaStream_t stream) {
  return collective({Function::kReceive, nullptr, data, count, type, ncclSum, -1, comm, stream, false, {}},
                    [&] { return TUTTI_NCCL_PASS(ncclRecv, (data, count, type, peer, comm, stream)); });
}

// The second name of each.
#define TUTTI_NCCL_ALIAS(result, name, parameters, arguments) \
  TUTTI_NCCL_EXPORT result p##name parameters __attribute__((nothrow, alias(#name)));
TUTTI_NCCL_INTERCEPTED(TUTTI_NCCL_ALIAS)
