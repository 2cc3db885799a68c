#include "communicator/fake_nccl.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

// Of one rank.
struct ncclComm {
  int rank = 0, size = 0;
  std::shared_ptr<tutti::test::FakeGroup> group;
  int calls = 0;                    // collectives that its stream has come to
  std::map<unsigned, double> made;  // operations
  bool aborted = false;             // under the group's mutex: ends what waits for this rank
};

namespace tutti::test {
namespace {

using Lock = std::unique_lock<std::mutex>;

std::mutex groups_mutex;
auto* const groups = new std::map<std::string, std::shared_ptr<FakeGroup>>;  // whoever is left inside uses it at exit
std::atomic<int> ids{0};
std::atomic<int> beginning{0};  // how many ranks wait for the others to begin
std::atomic<bool> over{false};  // none waits any longer

std::size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32:
      return 4;
    default:
      return 8;
  }
}

template <class T>
void combine(std::byte* into, const std::byte* from, std::size_t count, ncclRedOp_t op) {
  for (std::size_t i = 0; i < count; ++i) {
    T a, b;
    std::memcpy(&a, into + i * sizeof(T), sizeof(T));
    std::memcpy(&b, from + i * sizeof(T), sizeof(T));
    if (op == ncclMax) {
      a = std::max(a, b);
    } else if (op == ncclMin) {
      a = std::min(a, b);
    } else if (op == ncclProd) {
      a = static_cast<T>(a * b);
    } else {
      a = static_cast<T>(a + b);
    }
    std::memcpy(into + i * sizeof(T), &a, sizeof(T));
  }
}
template <class T>
void scale(std::byte* data, std::size_t count, double factor) {
  for (std::size_t i = 0; i < count; ++i) {
    T a;
    std::memcpy(&a, data + i * sizeof(T), sizeof(T));
    a = static_cast<T>(a * factor);
    std::memcpy(data + i * sizeof(T), &a, sizeof(T));
  }
}
void combine(std::byte* into, const std::byte* from, std::size_t count, ncclDataType_t type, ncclRedOp_t op) {
  if (type == ncclUint8) return combine<std::uint8_t>(into, from, count, op);
  if (type == ncclInt32) return combine<std::int32_t>(into, from, count, op);
  if (type == ncclFloat32) return combine<float>(into, from, count, op);
  combine<double>(into, from, count, op);
}
void scale(std::byte* data, std::size_t count, ncclDataType_t type, double factor) {
  if (type == ncclFloat32) return scale<float>(data, count, factor);
  scale<double>(data, count, factor);
}

enum class Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv };
struct Operation {
  Kind kind;
  const std::byte* send;
  std::byte* recv;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op;
  int peer;
  ncclComm_t comm;
  cudaStream_t stream;
  int number = 0;
};

thread_local int depth = 0;
thread_local std::vector<Operation> grouped;

void give(Operation& o) {
  FakeGroup& group = *o.comm->group;
  const std::size_t unit = bytes_of(o.type);
  const std::size_t blocks = o.kind == Kind::kReduceScatter ? static_cast<std::size_t>(o.comm->size) : 1;
  std::vector<std::byte> data;
  const bool gives = o.kind != Kind::kRecv && (o.kind != Kind::kBroadcast || o.comm->rank == o.peer);
  if (gives) data.assign(o.send, o.send + blocks * o.count * unit);
  const auto made = o.comm->made.find(o.op);
  if (made != o.comm->made.end()) scale(data.data(), blocks * o.count, o.type, made->second);
  const Lock lock(group.mutex);
  if (o.kind == Kind::kSend) {
    group.mailed[{o.comm->rank, o.peer}].push_back(std::move(data));
  } else if (o.kind != Kind::kRecv) {
    o.number = o.comm->calls++;
    group.given[{o.number, o.comm->rank}] = std::move(data);
  }
  group.changed.notify_all();
}

void take(const Operation& o) {
  FakeGroup& group = *o.comm->group;
  const int rank = o.comm->rank, size = o.comm->size;
  const std::size_t bytes = o.count * bytes_of(o.type);
  Lock lock(group.mutex);
  if (o.kind == Kind::kSend) return;
  if (o.kind == Kind::kRecv) {
    auto& mail = group.mailed[{o.peer, rank}];
    group.changed.wait(lock, [&] { return o.comm->aborted || !mail.empty(); });
    if (mail.empty()) return;
    std::memcpy(o.recv, mail.front().data(), std::min(bytes, mail.front().size()));
    mail.pop_front();
    return;
  }
  const auto all = [&] {
    for (int r = 0; r < size; ++r) {
      if (!group.given.contains({o.number, r})) return false;
    }
    return true;
  };
  group.changed.wait(lock, [&] { return o.comm->aborted || all(); });
  if (!all()) return;
  const auto of = [&](int r) -> const std::vector<std::byte>& { return group.given[{o.number, r}]; };
  if (o.kind == Kind::kBroadcast) {
    std::memcpy(o.recv, of(o.peer).data(), bytes);
  } else if (o.kind == Kind::kAllGather) {
    for (int r = 0; r < size; ++r) std::memcpy(o.recv + static_cast<std::size_t>(r) * bytes, of(r).data(), bytes);
  } else if (o.kind != Kind::kReduce || rank == o.peer) {
    const std::size_t first = o.kind == Kind::kReduceScatter ? static_cast<std::size_t>(rank) * bytes : 0;
    std::vector<std::byte> total(of(0).data() + first, of(0).data() + first + bytes);
    for (int r = 1; r < size; ++r) combine(total.data(), of(r).data() + first, o.count, o.type, o.op);
    if (o.op == ncclAvg) scale(total.data(), o.count, o.type, 1.0 / size);
    std::memcpy(o.recv, total.data(), bytes);
  }
}

ncclResult_t launch(std::vector<Operation> operations) {
  if (operations.empty()) return ncclSuccess;
  auto* const stream = static_cast<DeviceStream>(operations.front().stream);
  stream_of(stream).put([operations = std::move(operations)]() mutable {
    for (Operation& each : operations) give(each);
    for (const Operation& each : operations) take(each);
  });
  return ncclSuccess;
}

ncclResult_t add(Kind kind, const void* send, void* recv, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                 int peer, ncclComm_t comm, cudaStream_t stream) {
  if (kind == Kind::kSend || kind == Kind::kRecv) ++fake_faults().messages;
  Operation made{kind,  static_cast<const std::byte*>(send), static_cast<std::byte*>(recv), count, type, op, peer, comm,
                 stream};
  if (depth == 0) return launch({made});
  grouped.push_back(made);
  return ncclSuccess;
}

// As NCCL where it connects two ranks for the first time.
ncclResult_t wait_inside(ncclComm& comm) {
  Lock lock(comm.group->mutex);
  comm.group->changed.wait(lock, [&] { return comm.aborted; });
  return ncclInternalError;
}

ncclResult_t begin(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
  if (fake_faults().fails_to_begin == rank) return ncclSystemError;
  std::shared_ptr<FakeGroup> group;
  {
    const std::lock_guard lock(groups_mutex);
    auto& found = (*groups)[std::string(id.internal, sizeof id.internal)];
    if (found == nullptr) found = std::make_shared<FakeGroup>();
    group = found;
  }
  ++beginning;
  Lock lock(group->mutex);
  ++group->came;
  group->changed.notify_all();
  while (group->came < ranks && !over) group->changed.wait_for(lock, std::chrono::milliseconds(10));
  const bool all = group->came >= ranks;
  if (all) *comm = new ncclComm{rank, ranks, group, 0, {}, false};
  lock.unlock();
  --beginning;
  return all ? ncclSuccess : ncclRemoteError;
}

}  // namespace

FakeFaults& fake_faults() {
  static FakeFaults faults;
  return faults;
}

int fake_depth() { return depth; }

void end_fakes() {
  over = true;
  while (beginning > 0) std::this_thread::yield();
  over = false;
}

NcclLibrary fake_nccl() {
  NcclLibrary fake;
  fake.version = "2.99.1";
  fake.ncclGetVersion = [](int* version) {
    *version = 29901;
    return ncclSuccess;
  };
  fake.ncclGetUniqueId = [](ncclUniqueId* id) {
    const int number = ++ids;
    std::memcpy(id->internal, &number, sizeof number);
    return ncclSuccess;
  };
  fake.ncclCommInitRank = &begin;
  fake.ncclCommDestroy = [](ncclComm_t comm) {
    ++fake_faults().ends;
    delete comm;
    return ncclSuccess;
  };
  fake.ncclCommAbort = [](ncclComm_t comm) {
    {
      const Lock lock(comm->group->mutex);
      comm->aborted = true;
      comm->group->changed.notify_all();
    }
    // What its stream holds may still be on its way out, so it is kept.
    const std::lock_guard lock(groups_mutex);
    static auto* const kept = new std::vector<ncclComm_t>;
    kept->push_back(comm);
    ++fake_faults().aborts;
    return ncclSuccess;
  };
  fake.ncclCommGetAsyncError = [](ncclComm_t comm, ncclResult_t* error) {
    *error = comm->rank == 0 ? static_cast<ncclResult_t>(fake_faults().asynchronous.load()) : ncclSuccess;
    return ncclSuccess;
  };
  fake.ncclGetLastError = [](ncclComm_t) { return "a fake's last error"; };
  fake.ncclGetErrorString = [](ncclResult_t) { return "a fake's error"; };
  fake.ncclGroupStart = [] {
    ++depth;
    return ncclSuccess;
  };
  fake.ncclGroupEnd = [] { return --depth > 0 ? ncclSuccess : launch(std::exchange(grouped, {})); };
  fake.ncclRedOpCreatePreMulSum = [](ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t,
                                     ncclComm_t comm) {
    float single;
    double factor;
    std::memcpy(&single, scalar, sizeof single);
    std::memcpy(&factor, scalar, type == ncclFloat32 ? sizeof single : sizeof factor);
    if (type == ncclFloat32) factor = single;
    *op = static_cast<ncclRedOp_t>(100 + comm->made.size());
    comm->made[*op] = factor;
    return ncclSuccess;
  };
  fake.ncclRedOpDestroy = [](ncclRedOp_t, ncclComm_t) { return ncclSuccess; };
  fake.ncclAllReduce = [](const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                          ncclComm_t comm, cudaStream_t stream) {
    if (fake_faults().refuses == comm->rank) return ncclInvalidArgument;
    if (fake_faults().waits_inside == comm->rank) return wait_inside(*comm);
    return add(Kind::kAllReduce, send, recv, count, type, op, -1, comm, stream);
  };
  fake.ncclReduce = [](const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                       ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::kReduce, send, recv, count, type, op, root, comm, stream);
  };
  fake.ncclBroadcast = [](const void* send, void* recv, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                          cudaStream_t stream) {
    return add(Kind::kBroadcast, send, recv, count, type, ncclSum, root, comm, stream);
  };
  fake.ncclAllGather = [](const void* send, void* recv, size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
    return add(Kind::kAllGather, send, recv, count, type, ncclSum, -1, comm, stream);
  };
  fake.ncclReduceScatter = [](const void* send, void* recv, size_t count, ncclDataType_t type, ncclRedOp_t op,
                              ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::kReduceScatter, send, recv, count, type, op, -1, comm, stream);
  };
  fake.ncclSend = [](const void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                     cudaStream_t stream) {
    return add(Kind::kSend, data, nullptr, count, type, ncclSum, peer, comm, stream);
  };
  fake.ncclRecv = [](void* data, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t stream) {
    return add(Kind::kRecv, nullptr, data, count, type, ncclSum, peer, comm, stream);
  };
  return fake;
}

}  // namespace tutti::test
