// The ranks of a communicator of NCCL that have found each other, so that they can agree whether Tutti serves it.
//
// Rank 0 decides, the others ask it: whatever is missing or refused anywhere, all ranks hear the same. All waits are
// bounded. The store that they meet at is served by the process that made the unique id, as long as one of its circles
// lives.
//
// Thread rule: one thread at a time a communicator, as NCCL has it; circles of one family share a lock.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "nccl/unique_id.h"

namespace tutti {
class Store;
}

namespace tutti::nccl {

// Makes the meeting place of an id that this process has just got from NCCL, if the id has room for it.
void offer_place(ncclUniqueId& id);

struct Verdict {
  bool yes = false;
  std::string reason;  // if not
  std::string name;    // if so: the group's, equal on all ranks and new
};

class Circle {
 public:
  // Reaches the meeting place. Throws Error if it cannot.
  Circle(const MeetingPlace& place, int rank, int size);
  ~Circle();
  Circle(const Circle&) = delete;
  Circle& operator=(const Circle&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& secret() const noexcept;

  // Every rank says what it has; a refusal is any card that begins with '!', and what follows is its reason. The ranks
  // go on if none refuses and `judge` (asked on rank 0 only, with the cards in rank order) finds nothing against it.
  // `topic` is new. Whoever refuses need not wait for the others; rank 0 waits for them as long as `patience`.
  Verdict agree(const std::string& topic, const std::string& card, std::chrono::seconds patience,
                std::string (*judge)(const std::vector<std::string>& cards));

  // One split of this circle's ranks, in the order of their calls. Null for a rank without a colour, or if one of the
  // ranks refuses.
  std::unique_ptr<Circle> split(int color, int key, bool refuse);

  // For CudaCommunicator::create.
  Store& store();

 private:
  struct Family;
  Circle(std::shared_ptr<Family> family, const std::string& path, int rank, int size);
  void part(const std::string& topic);

  std::shared_ptr<Family> family_;
  std::string path_;
  std::shared_ptr<Store> store_;  // the part of it below `path_`
  int rank_;
  int size_;
  int splits_ = 0;
  bool complete_ = true;  // every rank has been heard; if not, splits are left to NCCL
};

}  // namespace tutti::nccl
