// Memory that the ranks of a communicator have registered, and where a call's buffers lie in it.
//
// Registered memory is a promise (include/tutti/cuda/communicator.h): so each rank may decide by its own pointers
// whether a call runs without copies, and by what, without asking the others. What it has decided is part of the
// fingerprint that every call compares before a peer's memory is touched: a broken promise is an error, never wrong
// data.
//
// Thread rule: the communicator's mutex guards it, but remember() and explain(), which have a lock of their own (a
// leaf): who asks for a failure must not wait for a launch.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tutti/call.h"
#include "tutti/cuda/communicator.h"

namespace tutti::cuda {

// A buffer in memory that all ranks map; without memory it is used by its own rank only.
struct DirectBuffer {
  std::shared_ptr<const CudaRegion> memory;
  std::size_t offset = 0;
  std::uint32_t range = 0;  // number of the registration; 0: it is not registered
};
struct DirectPlace {
  DirectBuffer input, output;
  std::uint64_t number = 0;  // of what must lie alike: part of what ranks compare
  bool by_copy_engines = false;
};
// In which registered memory copy engines carry out a call that they can: none, that of allocate(), all.
enum class CopyEngines { kNowhere, kAllocated, kEverywhere };

// How such a call runs; of copy engines, which of the two meetings.
enum class DirectWay { kKernel, kFirstMeeting, kSecondMeeting };
// What ranks compare of it beside the call: place, blocks and way. A hash of all bits of them.
std::uint32_t choice_of(const DirectPlace& place, int blocks, DirectWay way) noexcept;
// "input in range 1 at byte 0, output in range 2 at byte 64": the registered ones.
std::string describe(const DirectPlace& place);

// What a call without copies touches. Empty: there is no such call, or it is too small to gain from it.
struct DirectSizes {
  std::size_t input = 0, output = 0;                 // bytes
  bool shared_input = false, shared_output = false;  // touched by peers
};
std::optional<DirectSizes> direct_sizes(const Call& call, int size);

// The same of a call on copy engines, of any size; no bytes where this rank has no such buffer.
DirectSizes copied_sizes(const Call& call, int rank, int size);

class Registrations {
  struct Entry {
    std::shared_ptr<const CudaRegion> region;
    std::uint32_t number = 0;
    std::size_t bytes = 0;
    bool allocated = false;
  };
  using Entries = std::map<const std::byte*, Entry>;  // by this rank's address

 public:
  // For a range that begins at `base`, made before ranks agree on it: then nothing may fail that adds it.
  using Room = Entries::node_type;
  static Room room_at(const std::byte* base);
  // Numbered in the order of registration, which is the same on all ranks. `allocated`: by allocate().
  void add(std::shared_ptr<const CudaRegion> region, int rank, bool allocated = false) {
    const std::byte* const base = region->data(rank);
    add(std::move(region), room_at(base), allocated);
  }
  void add(std::shared_ptr<const CudaRegion> region, Room room, bool allocated = false) noexcept;
  void remove(const CudaRegion& region);
  void clear() noexcept { entries_.clear(); }
  bool contains(const void* data, std::size_t bytes) const { return find(data, bytes) != nullptr; }
  // Whether a byte of [data, data + bytes) is registered.
  bool touches(const void* data, std::size_t bytes) const;
  // Whether it is registered, and not by allocate().
  bool holds(const CudaRegion& region) const;

  // Where what peers touch lies in registered memory; empty if a part of it does not, or the call has no such kernel.
  // Copy engines make more calls than kernels do, and of any size.
  std::optional<DirectPlace> place_of(const Call& call, int rank, int size,
                                      CopyEngines engines = CopyEngines::kNowhere) const;
  // The same of what `sizes` says that peers touch, by an algorithm that `kind` tells from others.
  std::optional<DirectPlace> place_of(const Call& call, const DirectSizes& sizes, std::uint64_t kind) const;

  // Remembers how a call of this fingerprint was run, for explain().
  void remember(std::uint32_t fingerprint, const DirectPlace& place);
  // What to add to the message of calls that differ; empty if no memory was ever registered.
  std::string explain(std::uint32_t fingerprint) const;

 private:
  const std::pair<const std::byte* const, Entry>* find(const void* data, std::size_t bytes) const;
  // `allocated`: in memory of allocate() only.
  std::optional<DirectPlace> locate(const Call& call, const DirectSizes& sizes, std::uint64_t kind,
                                    bool allocated) const;

  Entries entries_;
  std::uint32_t made_ = 0;
  mutable std::mutex texts_mutex_;  // guards the members below
  bool any_ = false;                // memory was ever registered
  std::unordered_map<std::uint32_t, std::string> texts_;
};

}  // namespace tutti::cuda
