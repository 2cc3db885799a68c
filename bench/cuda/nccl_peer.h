// NCCL beside Tutti in one program: loaded at run time from the path given, by the few declarations that are needed of
// its public interface (NCCL 2.x).
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <vector>

namespace tutti::bench {

class Nccl {
 public:
  using Comm = void*;
  static constexpr int kBfloat16 = 9, kSum = 0;

  explicit Nccl(const std::string& path) : library_(::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) throw std::runtime_error(std::string("NCCL: ") + ::dlerror());
    find(comm_init_all_, "ncclCommInitAll");
    find(all_reduce_, "ncclAllReduce");
    find(all_gather_, "ncclAllGather");
    find(reduce_scatter_, "ncclReduceScatter");
    find(get_version_, "ncclGetVersion");
    // From 2.27 on; without them there are no windows.
    allocate_ = reinterpret_cast<decltype(allocate_)>(::dlsym(library_, "ncclMemAlloc"));
    register_ = reinterpret_cast<decltype(register_)>(::dlsym(library_, "ncclCommWindowRegister"));
  }

  // Memory registered as a symmetric window of the group, in which NCCL has its fastest calls for small messages.
  // Collective: every rank in a thread of its own; it lives as long as the program. Null: this NCCL has no windows.
  void* window(std::size_t bytes, Comm comm) const {
    if (allocate_ == nullptr || register_ == nullptr) return nullptr;
    void *memory = nullptr, *registered = nullptr;
    check(allocate_(&memory, bytes), "ncclMemAlloc");
    constexpr int kCollectiveSymmetric = 1;  // NCCL_WIN_COLL_SYMMETRIC
    check(register_(comm, memory, bytes, &registered, kCollectiveSymmetric), "ncclCommWindowRegister");
    return memory;
  }

  std::vector<Comm> init(int ranks) const {
    std::vector<Comm> comms(static_cast<std::size_t>(ranks));
    check(comm_init_all_(comms.data(), ranks, nullptr), "ncclCommInitAll");
    return comms;
  }
  int version() const {
    int v = 0;
    get_version_(&v);
    return v;
  }
  // `count` elements of a rank's block. False: not a collective of this table.
  bool run(const std::string& collective, const void* in, void* out, std::size_t count, Comm comm,
           cudaStream_t stream) const {
    if (collective == "all_reduce") {
      check(all_reduce_(in, out, count, kBfloat16, kSum, comm, stream), "ncclAllReduce");
    } else if (collective == "all_gather") {
      check(all_gather_(in, out, count, kBfloat16, comm, stream), "ncclAllGather");
    } else if (collective == "reduce_scatter") {
      check(reduce_scatter_(in, out, count, kBfloat16, kSum, comm, stream), "ncclReduceScatter");
    } else {
      return false;
    }
    return true;
  }

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(::dlsym(library_, name));
    if (function == nullptr) throw std::runtime_error(std::string("NCCL has no ") + name);
  }
  static void check(int result, const char* call) {
    if (result != 0) throw std::runtime_error(std::string(call) + " returned " + std::to_string(result));
  }

  void* library_;
  int (*comm_init_all_)(Comm*, int, const int*) = nullptr;
  int (*all_reduce_)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*all_gather_)(const void*, void*, std::size_t, int, Comm, cudaStream_t) = nullptr;
  int (*reduce_scatter_)(const void*, void*, std::size_t, int, int, Comm, cudaStream_t) = nullptr;
  int (*get_version_)(int*) = nullptr;
  int (*allocate_)(void**, std::size_t) = nullptr;
  int (*register_)(Comm, void*, std::size_t, void**, int) = nullptr;
};

}  // namespace tutti::bench
