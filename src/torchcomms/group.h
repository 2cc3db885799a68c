// What this face has of tutti._torch: the groups that calls run on, c10d::Backend objects.
//
// Tensors, streams, staging and works are turned into calls there, once for both faces of torch. A group is made
// through Python, as torch.distributed makes its own: so settings, forced algorithms and the algorithms that
// AlgorithmCollectionBuilder names are the same on both.
//
// Ownership: the caller's. Thread rule: from any thread; takes Python's global lock, which the caller may hold or not.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

namespace tutti::torchcomms {

using Group = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct GroupRequest {
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
  // Why this rank cannot take part: the others, who wait for it, are told, and it raises that. Or nothing.
  std::string refused{};
};

struct MadeGroup {
  Group group;
  StorePtr store;  // that it was made over
};

// Collective over the ranks of the group. What Python raises becomes c10::Error, but for an interruption by the user,
// which passes.
MadeGroup make_group(const GroupRequest& request);

// Collective over the group: registers the storage of a CUDA tensor, and gives those of all ranks as bytes that this
// rank's GPU reaches, valid until unregistered_by_all(). Empty on all ranks where they cannot be registered. Both take
// Python's lock, and give it back while they wait.
std::vector<at::Tensor> registered_by_all(const Group& group, const at::Tensor& tensor);
void unregistered_by_all(const Group& group, const at::Tensor& tensor);

// torch's own object for the allocator of tutti.mem_pool(): CUDA memory that the ranks of a host can map. One a
// process, never freed. c10::Error where there is no GPU or no libtutti_cuda.so. Takes Python's lock.
std::shared_ptr<c10::Allocator> cuda_allocator();

}  // namespace tutti::torchcomms
