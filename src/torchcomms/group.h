// The groups that calls of TorchComms run on: c10d::Backend objects that tutti._torch makes.
//
// Tensors, streams, staging and works are turned into calls there, once for both faces of torch. A group is made
// through Python, as torch.distributed makes its own: so settings, forced algorithms and the algorithms that
// AlgorithmCollectionBuilder names are the same on both.
//
// Ownership: the caller's. Thread rule: from any thread; takes Python's global lock, which the caller may hold or not.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>

namespace tutti::torchcomms {

using Group = c10::intrusive_ptr<c10d::Backend>;
using StorePtr = c10::intrusive_ptr<c10d::Store>;

struct GroupPlan {
  StorePtr store;   // null: the job's, of which a process has one
  int rank = 0;     // in the group
  int size = 1;     // of the group
  std::string key;  // the same on all ranks, of no other group that lives in the store
  std::chrono::milliseconds timeout{};
  std::unordered_map<std::string, std::string> hints;
};

struct MadeGroup {
  Group group;
  StorePtr store;  // that it was made over
};

// Collective over the ranks of the group. What Python raises becomes c10::Error, but for an interruption by the user,
// which passes.
MadeGroup make_group(const GroupPlan& plan);

// Runs `action` without Python's global lock, for what waits for threads that may want it.
void without_python(const std::function<void()>& action);

}  // namespace tutti::torchcomms
