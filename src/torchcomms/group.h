// What this face has of tutti._torch: the groups that calls run on, c10d::Backend objects, and memory that peers map.
//
// Tensors, streams, staging and works are turned into calls there, once for both faces of torch. A group is made
// through Python, as torch.distributed makes its own: so settings, forced algorithms and the algorithms that
// AlgorithmCollectionBuilder names are the same on both.
//
// Ownership: the caller's. Thread rule: from any thread; takes Python's global lock, which the caller may hold or not.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::torchcomms {

using Group = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct GroupPlan {
  StorePtr store;   // null: the job's
  int rank = 0;     // in the group
  int size = 1;     // of the group
  std::string key;  // the same on all ranks, of no other group that lives in the store
  std::chrono::milliseconds timeout{};
  std::unordered_map<std::string, std::string> hints;
  // The ranks need not be the processes of the job's start: they meet again for a store, where none is given.
  bool anew = false;
  // The group whose ranks `ranks` are, in the order of the new one: it forms in that, and the store is not asked. Or
  // null.
  Group parent{};
  std::vector<int> ranks{};
};

struct MadeGroup {
  Group group;
  StorePtr store;  // that it was made over
};

// Collective over the ranks of the group. What Python raises becomes c10::Error, but for an interruption by the user,
// which passes.
MadeGroup make_group(const GroupPlan& plan);

// torch's own object for the allocator of tutti.mem_pool(): CUDA memory that the ranks of a host can map. One a
// process, never freed. c10::Error where there is no GPU or no libtutti_cuda.so. Takes Python's lock.
std::shared_ptr<c10::Allocator> cuda_allocator();

// A tensor's memory in the hands of those peers that map it. Given back when this goes: then they are thought to write
// there still, and it becomes this process's alone; end() says that they do not.
class Loan {
 public:
  // Lends nothing where peers map nothing of it.
  explicit Loan(at::Tensor tensor);
  ~Loan();
  Loan(const Loan&) = delete;
  Loan& operator=(const Loan&) = delete;

  void end() { take_back(/*done=*/true); }
  // Tell a peer where it is; zero and zero where nothing was lent.
  std::uint64_t arena() const noexcept { return place_.first; }
  std::uint64_t offset() const noexcept { return place_.second; }

 private:
  void take_back(bool done);

  at::Tensor tensor_;
  std::pair<std::uint64_t, std::uint64_t> place_;
};

// The bytes of a peer's loan, which this process maps; undefined where it does not.
at::Tensor peer_bytes(std::uint64_t arena, std::uint64_t offset, std::uint64_t bytes);

}  // namespace tutti::torchcomms
