// When code may be loaded on a device, and what is left of groups given back (leftovers.h): while no kernel of this
// process that waits for a peer is under way there, and none is being issued. CUDA may wait for all kernels of a device
// before it has done so, and the peer that one of them waits for may be another thread of this process, on the same
// device.
//
// Nobody waits for such a moment: who makes a call while anything of this process is not loaded looks whether it has
// come, and if so loads for all communicators on this device. (Each for its own alone would starve one whose calls
// always come while another's are under way.) A communicator whose calls were captured is never known to be quiet
// again: its graph may be replayed at any time.
//
// Leftovers are looked after where groups are made and end, and where memory is registered.
//
// Ownership: members belong to their communicators. Thread rule: any thread. Locks: taken under the mutex of the member
// that asks; tries those of the others.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <mutex>
#include <vector>

namespace tutti::cuda {

class QuietDevice {
 public:
  struct Member {
    int device = 0;
    std::mutex* calls = nullptr;  // held while it issues
    std::function<bool()> idle;   // under `calls`: nothing of it is under way
    std::function<void()> load;   // under `calls`: what is ready, if anything is
  };

  static QuietDevice& of_process();

  void add(const Member* member);
  void remove(const Member* member);
  // So many more, or fewer, are asked for and not loaded.
  void count(int more) noexcept;
  bool any_waits() const noexcept;
  // Under the mutex of `asking`: loads for all, if it can be done now.
  void load_if_quiet(const Member& asking);
  // Under no member's mutex: gives back leftovers, if no device has a kernel under way. If more than this is kept,
  // whatever runs: a process whose graphs live on is never known to be quiet.
  void give_back_if_quiet();
  static constexpr std::size_t kMostLeftovers = 256, kMostLeftoverBytes = std::size_t{1} << 30;

 private:
  std::mutex mutex_;  // guards members_
  std::vector<const Member*> members_;
  std::atomic<int> waiting_{0};
};

}  // namespace tutti::cuda
