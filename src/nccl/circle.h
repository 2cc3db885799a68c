// The ranks of a communicator of NCCL that have found each other, so that they can agree whether Tutti serves it.
//
// Rank 0 decides, the others ask it: whatever is missing or refused anywhere, all ranks hear the same. All waits are
// bounded, and a rank that has waited for its time does not guess: who settles a topic first, rank 0 with its verdict
// or another with a no, settles it for all, however late the rest comes.
//
// They meet at the store of the process that made the unique id, or at their parent's. Whoever serves that may be no
// rank of theirs and end at any time, so before it counts they move to a store that their own rank 0 serves as long as
// its circle lives. A rank of the parent that serves it stays in its split until all parts have moved.
//
// Thread rule: one thread at a time a communicator, as NCCL has it; circles of one family share a lock.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nccl/unique_id.h"

namespace tutti {
class Store;
}

namespace tutti::nccl {

// Makes the meeting place of an id that this process has just got from NCCL, if the id has room for it.
void offer_place(ncclUniqueId& id);
// Nobody meets there: the offer ends, if it is this process's.
void withdraw_place(const ncclUniqueId& id);

struct Verdict {
  bool yes = false;
  std::string reason;                 // if not
  std::string name;                   // if so: the group's, equal on all ranks and new
  std::optional<MeetingPlace> place;  // likewise: where the ranks move to
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
  // Equal for circles that share a connection, and so a lock.
  const void* family() const noexcept { return family_.get(); }
  const std::string& secret() const noexcept;

  // Every rank says what it has; a refusal is any card that begins with '!', and what follows is its reason. The ranks
  // go on if none refuses and `judge` (asked on rank 0 only, with the cards in rank order) finds nothing against it.
  // `topic` is new. With `moving`, rank 0 offers a place on this host. Whoever refuses need not wait for the others;
  // rank 0 waits for them as long as `patience`.
  Verdict agree(const std::string& topic, const std::string& card, std::chrono::milliseconds patience,
                std::string (*judge)(const std::vector<std::string>& cards), bool moving);
  // Throws Error if the place cannot be reached; then this rank has left the circle.
  void move_to(const MeetingPlace& place);

  // One split of this circle's ranks, in the order of their calls. Null for a rank without a colour, or if one of the
  // ranks refuses.
  std::unique_ptr<Circle> split(int color, int key, bool refuse);
  // Of a split, when its ranks have agreed for the first time: this one asks the parent's store no more.
  void leave() noexcept;
  // Behind split(), if this rank serves the store: waits until the others' parts have left it, bounded.
  void await_leaving() noexcept;

  // For CudaCommunicator::create.
  std::shared_ptr<Store> store() const;

 private:
  struct Family;
  Circle(std::shared_ptr<Family> family, const std::string& path, int rank, int size);
  std::string settle(const std::string& topic, std::string word);
  void part(const std::string& topic);

  static std::shared_ptr<Family> meet(const MeetingPlace& place);
  std::shared_ptr<Family> family_;
  std::string path_;
  std::shared_ptr<Store> store_;  // the part of it below `path_`
  int rank_;
  int size_;
  int splits_ = 0;
  std::vector<std::string> leaving_;  // what the ranks of the last split will say as they leave
  std::shared_ptr<Store> parents_;    // of a split that uses it: the parent's part of the store
  std::string left_;                  // what this one says there as it leaves
  bool complete_ = true;              // every rank has been heard; if not, splits are left to NCCL
};

}  // namespace tutti::nccl
