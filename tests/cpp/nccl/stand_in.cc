// A stand-in for NCCL's library that records what it is asked for, so that what the library under its name passes on
// can be seen without a GPU. An old one: it lacks most functions.
#include <arpa/inet.h>
#include <netinet/in.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

#include "device/nccl/abi.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

struct ncclComm {
  int rank, size, device;
  int in_progress = 0;  // how often it says so yet
};

namespace {

std::mutex mutex;
std::condition_variable kernels_end;
bool kernels_over = false;  // guarded by the mutex
std::string log_text;
std::atomic<int> async_error{0};
std::atomic<std::uint64_t> ids{0};
std::set<unsigned> operations;
thread_local int device = 0;

ncclResult_t record(const char* name) {
  const std::lock_guard lock(mutex);
  if (!log_text.empty()) log_text += ' ';
  log_text += name;
  return ncclSuccess;
}

ncclResult_t end_kernels() {
  const std::lock_guard lock(mutex);
  kernels_over = true;
  kernels_end.notify_all();
  return ncclSuccess;
}

// As from NCCL's own files.
void read_files() {
  if (const char* const said = std::getenv("STAND_IN_FILE_BLOCKING")) ::setenv("NCCL_COMM_BLOCKING", said, 0);
}

ncclResult_t make(const char* name, ncclComm_t* comm, int rank, int size) {
  *comm = new ncclComm{rank, size, device};
  return record(name);
}

}  // namespace

// What has been called, by name without "nccl", and forgets it.
EXPORT const char* stand_in_take() {
  static thread_local std::string taken;
  const std::lock_guard lock(mutex);
  taken = std::move(log_text);
  log_text.clear();
  return taken.c_str();
}
// As cudaSetDevice: of communicators that this thread makes.
EXPORT void stand_in_device(int number) { device = number; }
EXPORT void stand_in_fails(int error) { async_error = error; }

// Waits for kernels, which abort, revoke and shrink end. False, and recorded, if none does.
EXPORT bool stand_in_await_kernels() {
  std::unique_lock lock(mutex);
  const bool over = kernels_end.wait_for(lock, std::chrono::seconds(5), [] { return kernels_over; });
  lock.unlock();
  if (!over) record("Hung");
  return over;
}

EXPORT ncclResult_t ncclGroupStart();
EXPORT ncclResult_t ncclGroupEnd();

EXPORT ncclResult_t ncclGetVersion(int* version) {
  *version = 22703;
  return ncclSuccess;
}
EXPORT const char* ncclGetErrorString(ncclResult_t) { return "a stand-in's error"; }
EXPORT const char* ncclGetLastError(ncclComm_t) { return "a stand-in's last error"; }

// As NCCL's: a number, an address, zeros.
EXPORT ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof(*id));
  const std::uint64_t number = ++ids;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(9);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::memcpy(id->internal, &number, sizeof(number));
  std::memcpy(id->internal + sizeof(number), &address, sizeof(address));
  return record("GetUniqueId");
}

EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId, int rank) {
  read_files();
  return make("CommInitRank", comm, rank, ranks);
}
EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId, int rank, ncclConfig_t* config) {
  read_files();
  make("CommInitRankConfig", comm, rank, ranks);
  int blocking = 1;
  if (config != nullptr) std::memcpy(&blocking, reinterpret_cast<const char*>(config) + 16, sizeof(blocking));
  if (const char* const said = std::getenv("NCCL_COMM_BLOCKING")) blocking = std::atoi(said);
  if (blocking != 0) return ncclSuccess;
  (*comm)->in_progress = 2;
  return ncclInProgress;
}
EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int ids, ncclUniqueId*,
                                             ncclConfig_t*) {
  if (ids < 1) return ncclInvalidArgument;
  return make("CommInitRankScalable", comm, rank, ranks);
}
// By its own public names, as NCCL does in places.
EXPORT ncclResult_t ncclCommInitAll(ncclComm_t* comm, int devices, const int*) {
  ncclGroupStart();
  for (int d = 0; d < devices; ++d) comm[d] = new ncclComm{d, devices, d};
  ncclGroupEnd();
  return record("CommInitAll");
}
// As many ranks as the parent has, by the order of keys, which tests give as the rank itself; else a test says
// "rank,size" in STAND_IN_SPLIT.
EXPORT ncclResult_t ncclCommSplit(ncclComm_t parent, int color, int key, ncclComm_t* comm, ncclConfig_t*) {
  *comm = nullptr;
  if (color < 0) return record("CommSplit");
  int size = parent->size;
  if (const char* const said = std::getenv("STAND_IN_SPLIT")) std::sscanf(said, "%d,%d", &key, &size);
  return make("CommSplit", comm, key, size);
}
EXPORT ncclResult_t ncclCommShrink(ncclComm_t parent, int*, int count, ncclComm_t* comm, ncclConfig_t*, int flags) {
  if (flags != 0) end_kernels();
  return make("CommShrink", comm, parent->rank, parent->size - count);
}
EXPORT ncclResult_t ncclCommGrow(ncclComm_t parent, int ranks, const ncclUniqueId*, int rank, ncclComm_t* comm,
                                 ncclConfig_t*) {
  return make("CommGrow", comm, parent != nullptr ? parent->rank : rank, ranks);
}
EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  delete comm;
  return record("CommDestroy");
}
EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
  delete comm;
  end_kernels();
  return record("CommAbort");
}
EXPORT ncclResult_t ncclCommRevoke(ncclComm_t, int flags) {
  if (flags != 0) return ncclInvalidArgument;
  end_kernels();
  return record("CommRevoke");
}
EXPORT ncclResult_t ncclCommFinalize(ncclComm_t) { return record("CommFinalize"); }
EXPORT ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = ncclInProgress;
  if (comm->in_progress > 0 && comm->in_progress-- > 0) return ncclSuccess;
  *error = static_cast<ncclResult_t>(async_error.load());
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  *count = comm->size;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  *device = comm->device;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  *rank = comm->rank;
  return ncclSuccess;
}
EXPORT ncclResult_t ncclGroupStart() { return record("GroupStart"); }
EXPORT ncclResult_t ncclGroupEnd() { return record("GroupEnd"); }
EXPORT ncclResult_t ncclAllReduce(const void*, void*, size_t count, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                  cudaStream_t) {
  return record(("AllReduce:" + std::to_string(count)).c_str());
}
EXPORT ncclResult_t ncclBroadcast(const void*, void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return record("Broadcast");
}
EXPORT ncclResult_t ncclBcast(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return record("Bcast"); }
EXPORT ncclResult_t ncclReduce(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, int, ncclComm_t, cudaStream_t) {
  return record("Reduce");
}
EXPORT ncclResult_t ncclAllGather(const void*, void*, size_t, ncclDataType_t, ncclComm_t, cudaStream_t) {
  return record("AllGather");
}
EXPORT ncclResult_t ncclReduceScatter(const void*, void*, size_t, ncclDataType_t, ncclRedOp_t, ncclComm_t,
                                      cudaStream_t) {
  return record("ReduceScatter");
}
EXPORT ncclResult_t ncclSend(const void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) {
  return record("Send");
}
EXPORT ncclResult_t ncclRecv(void*, size_t, ncclDataType_t, int, ncclComm_t, cudaStream_t) { return record("Recv"); }
// Numbers as NCCL gives them: those of operations that are gone come again.
EXPORT ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void*, ncclDataType_t, ncclScalarResidence_t,
                                             ncclComm_t) {
  const std::lock_guard lock(mutex);
  unsigned number = ncclAvg + 1;
  while (operations.count(number) != 0) ++number;
  operations.insert(number);
  *op = static_cast<ncclRedOp_t>(number);
  return ncclSuccess;
}
EXPORT ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t) {
  const std::lock_guard lock(mutex);
  return operations.erase(op) != 0 ? ncclSuccess : ncclInvalidArgument;
}
EXPORT ncclResult_t ncclMemAlloc(void** memory, size_t) {
  *memory = nullptr;
  return ncclUnhandledCudaError;
}
