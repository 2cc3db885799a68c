#include "device/cuda/leftovers.h"

#include <list>
#include <mutex>
#include <utility>

namespace tutti::cuda {
namespace {

struct Kept {
  Leftover kind;
  std::size_t bytes;
  std::function<void()> give_back;
};

// One a process; never destroyed, since objects leave theirs at exit.
struct Leftovers {
  std::mutex mutex;  // guards kept; a leaf
  std::list<Kept> kept;
};
Leftovers& all() {
  static Leftovers* const instance = new Leftovers;
  return *instance;
}

}  // namespace

void keep_leftover(Leftover kind, std::size_t bytes, std::function<void()> give_back) {
  std::list<Kept> one;
  one.push_back({kind, bytes, std::move(give_back)});
  const std::lock_guard lock(all().mutex);
  all().kept.splice(all().kept.end(), one);
}

LeftoverCount leftovers() noexcept {
  const std::lock_guard lock(all().mutex);
  LeftoverCount count;
  for (const Kept& one : all().kept) {
    ++count.things;
    count.bytes += one.bytes;
  }
  return count;
}

void give_back_mappings() noexcept {
  std::list<Kept> gone;
  {
    const std::lock_guard lock(all().mutex);
    auto& kept = all().kept;
    for (auto at = kept.begin(); at != kept.end();) {
      const auto next = std::next(at);
      if (at->kind == Leftover::kMapping) gone.splice(gone.end(), kept, at);
      at = next;
    }
  }
  for (Kept& one : gone) one.give_back();
}

void give_back_leftovers() noexcept {
  std::list<Kept> gone;
  {
    const std::lock_guard lock(all().mutex);
    gone.swap(all().kept);
  }
  for (Kept& one : gone) one.give_back();
}

}  // namespace tutti::cuda
