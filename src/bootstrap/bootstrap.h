// What the ranks of something that forms, or takes up memory, say to each other: small blobs, gathered by all.
//
// Two implementations: over a store (here), and over the connections of a group that the ranks are in already
// (communicator/group_bootstrap.h), which asks no store and sees its ranks die.
//
// Thread rule: all members from any thread; over a store all but id(), rank() and size() wait for an all_gather() of
// the same object that is under way.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/store.h"

namespace tutti {

class Bootstrap {
 public:
  Bootstrap(std::string id, int rank, int size) : id_(std::move(id)), rank_(rank), size_(size) {}
  virtual ~Bootstrap() = default;
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  // Equal on all ranks, and of nothing else that forms.
  const std::string& id() const noexcept { return id_; }
  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }

  // Every rank gives a blob and gets all of them, by rank. They meet by `topic`, which is new each time. Throws
  // Error(kTimeout) naming the ranks that gave none, and within a second what watch() throws.
  virtual std::vector<std::string> all_gather(std::string_view topic, std::string_view blob,
                                              std::chrono::milliseconds timeout) = 0;
  // For who awaits another rank by other means, about twice a second: throws KnownToAll once a rank has failed
  // (tell()), and Error(kPeerLost) once one is known to have died.
  virtual void watch() = 0;
  // Tells the others that this rank has failed, as tell_failure() does, and whether it has told so of an earlier try
  // under the same id: then nobody can know which is meant. Neither throws.
  virtual void tell(const std::exception& error) noexcept = 0;
  virtual bool failed_before() noexcept { return false; }
  // Whoever goes on to watch() has what formed, and watches the others alone: errors say so.
  void formed() noexcept { formed_.store(true, std::memory_order_relaxed); }
  bool has_formed() const noexcept { return formed_.load(std::memory_order_relaxed); }

 private:
  const std::string id_;
  const int rank_;
  const int size_;
  std::atomic<bool> formed_{false};  // relaxed: nothing else follows from it
};
using BootstrapPtr = std::shared_ptr<Bootstrap>;

// Over a store; `id` is unique in it.
BootstrapPtr store_bootstrap(std::shared_ptr<Store> store, const std::string& id, int rank, int size);

}  // namespace tutti
