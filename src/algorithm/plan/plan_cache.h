// Plans that this process has read and proven, so that the next group finds them done.
//
// Three questions, the cheapest first: has this file changed since it was read (base/file_stamp.h); has a text of this
// digest been proven in this process; is there a verdict on disk (verdict_store.h). A plan's number of ranks, hosts and
// element types are part of its text, so its text and the verifier are all that a verdict depends on.
//
// Thread rule: any thread. One thread proves at a time; others that want the same plan wait and then have it. While one
// proves or waits, the handlers of signals run on it (base/interruption.h), which may want plans of their own.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "algorithm/plan/verdict_store.h"
#include "base/file_stamp.h"
#include "base/secret.h"
#include "base/turn.h"
#include "plan/plan.h"

namespace tutti {

struct ProvenPlan {
  std::shared_ptr<const plan::Plan> plan;  // with its repairs; null where its number of ranks is not the wanted one
  Digest content{};                        // SHA-256 of the text
  std::size_t ranks = 0;                   // that the plan is made for
};

class PlanCache {
 public:
  // The one of this process.
  static PlanCache& of_process();

  // The plan of a file. Throws Error(kInvalidArgument) that begins with the path and goes on with the JSON path of what
  // is wrong, or with what the verifier has found. A plan for another number of ranks is not proven.
  ProvenPlan load(const std::string& path, std::size_t ranks, const std::string& cache_folder);

  // That of a text, for any number of ranks. Throws as load() does, without a path.
  ProvenPlan prove(const std::string& text, const std::string& cache_folder);

  // How often a file has been read and how often the verifier has run, since the process began.
  std::uint64_t reads() const;
  std::uint64_t proofs() const;

 private:
  struct File {
    FileStamp stamp;
    Digest content;
    std::size_t ranks = 0;
  };

  // While it lives, the thread uses the cache alone. So does what a handler does on it meanwhile: nothing is held on to
  // across a proof. Throws Aborted where a handler raises while it waits.
  class Use {
   public:
    explicit Use(const PlanCache& cache);
    ~Use();
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;

   private:
    const PlanCache& cache_;
    TurnLock turn_;  // empty within another use
  };

  ProvenPlan prove_for(std::size_t ranks, const std::string& text, const std::string& cache_folder);
  void remember(const Digest& content, std::shared_ptr<const plan::Plan> plan);

  mutable TurnMutex mutex_;  // guards all below user_; none other is taken under it but by a handler
  mutable std::atomic<std::thread::id> user_{};  // who has the turn
  std::map<std::string, File> files_;
  std::map<Digest, std::shared_ptr<const plan::Plan>> plans_;
  std::list<Digest> order_;  // of plans_, the oldest first
  std::uint64_t reads_ = 0, proofs_ = 0;
};

}  // namespace tutti
