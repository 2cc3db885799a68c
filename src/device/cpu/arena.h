// Memory that all ranks of a host can map: the process's arena of mapped tensors.
//
// One sparse memfd a process. Peers receive its descriptor when a communicator forms and map all of it once; a
// tensor is then named by its offset. Freed blocks are cached; above a bound their pages are given back by punching
// holes. What a call of
// this process lends to its peers is taken back when the call ends. If it failed a stopped peer may resume and write
// there at any time, so the pages are replaced by private ones with the same content, in place, and the block that they
// belong to is quarantined: never mapped and never given out again.
//
// In a forked child the arena is remapped private at the same address by a pthread_atfork handler, so that a child
// that writes in place leaves its parent's tensors alone; Tutti is disabled there (forked_child()). The child may
// allocate and free in its private arena; offset_of() finds nothing there. Blocks that a living child may still read
// are not reused when the parent frees them (device/cpu/forked_children.h). One difference to plain memory remains: a
// page that the child has not written shows what the parent and its peers write to it after the fork.
//
// Thread rule: all members may be called from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "base/mapping.h"
#include "base/registry.h"  // forked_child()

namespace tutti {

inline constexpr std::uint64_t kNotMapped = ~std::uint64_t{0};

class Arena {
 public:
  // Creates the arena with `bytes` of address space (0: chosen from the machine's memory); less where the system
  // refuses so much. Freed blocks stay cached up to `cached_limit` bytes (0: chosen, as the only rank of the host).
  // Throws Error(kExhausted).
  static std::unique_ptr<Arena> create(std::size_t bytes, std::size_t cached_limit = 0);
  virtual ~Arena() = default;

  virtual int fd() const noexcept = 0;             // to be passed to peers; -1 in a forked child
  virtual std::size_t bytes() const noexcept = 0;  // of address space
  virtual std::uint64_t id() const noexcept = 0;   // random; unique among processes

  // 64-byte aligned (page aligned from 64 KB up); null when the arena is full. What it holds is undefined.
  virtual void* allocate(std::size_t bytes) noexcept = 0;
  virtual void deallocate(void* data) noexcept = 0;  // of null: nothing

  // True for every address of the arena, lock-free.
  virtual bool contains(const void* data) const noexcept = 0;
  // Offset of [data, data + bytes) in the arena, kNotMapped if it does not lie in one block of it.
  virtual std::uint64_t offset_of(const void* data, std::size_t bytes) const noexcept = 0;

  // offset_of(), and the peers may read and write there until take_back(). kNotMapped, too, where an earlier call that
  // failed lent some of the pages.
  virtual std::uint64_t lend(const void* data, std::size_t bytes) noexcept = 0;
  // Ends what lend() began for these ranges; empty ones are nothing. `done`: the peers are done with them. Else a range
  // is this process's alone when this returns, with its content (what threads of this process write meanwhile is kept),
  // and its block is quarantined. Two exceptions, both logged: while a call of another group lends the same pages they
  // stay shared until that ends; and without memory for them they stay so for ever.
  virtual void take_back(std::span<const std::span<std::byte>> lent, bool done) noexcept = 0;

  // The block that holds `data` is never mapped nor given out again, also after its owner frees it.
  virtual void quarantine(const void* data) noexcept = 0;

  // Lowers the bound on cached bytes, and gives back what is beyond it; a higher one changes nothing.
  virtual void limit_cache(std::size_t bytes) noexcept = 0;

  // What blocks occupy, sizes rounded up: given out and not freed; freed and still resident; quarantined, whether
  // freed or not.
  virtual std::size_t bytes_in_use() const noexcept = 0;
  virtual std::size_t bytes_cached() const noexcept = 0;
  virtual std::size_t bytes_quarantined() const noexcept = 0;
};

// What a process keeps of freed memory where `processes` share `memory` bytes: together they keep an eighth of it, or
// up to a quarter where that leaves a process less than 256 MB.
std::size_t chosen_cache_bytes(std::size_t memory, int processes) noexcept;

// The arena of this process, made at the first call; null if it could not be made (then nothing is mapped, and
// `tutti doctor` says why). One of the members of the process registry (base/registry.h).
Arena* process_arena(std::size_t bytes_if_new = 0) noexcept;

// Mappings of peers' arenas, shared by all communicators of the process and counted: one mapping a peer process.
class PeerArena {
 public:
  // Maps the arena behind `fd` or finds the mapping that exists for `id`. Null if it cannot be mapped, or if its owner
  // could shrink it.
  static std::shared_ptr<PeerArena> open(int fd, std::uint64_t id, std::size_t bytes) noexcept;
  std::byte* data() const noexcept { return mapping_.data(); }
  std::size_t bytes() const noexcept { return mapping_.bytes(); }

  explicit PeerArena(Mapping mapping) noexcept : mapping_(std::move(mapping)) {}

 private:
  Mapping mapping_;
};

}  // namespace tutti
