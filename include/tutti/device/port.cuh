// Ports: transfers that a kernel asks for and that copy engines carry out, so that no multiprocessor moves the bytes.
//
// A kernel writes requests into a ring in pinned host memory. A thread of the host, the proxy (one a communicator),
// takes them out in order, and enqueues copies and signals on a stream of its own a peer. A PortChannel is a value made
// by the host (CudaMemory::port) and passed to kernels. It costs a trip to the host a request, some microseconds, and
// more after a pause, in which the proxy sleeps: for transfers that are long, or whose kernel has other work.
//
// Order, over one peer: requests happen in the order in which they were put into the ring, whatever port or block they
// came from. A signal follows the bytes of all puts before it: the peer's wait(), followed by its barrier, sees them.
// A flush ends when the sources of all puts before it may be overwritten; it says nothing of what the peer sees.
// Between different peers nothing is ordered. A request covers what its team has written before it: the copy reads it.
//
// The ring. A block claims a position by an addition; the slot is position modulo size. It waits until the request that
// was there one lap before has been taken, stores the offsets and the length, and then the word `commit` with release.
// One bit of commit is the lap's parity, so the reader knows a new request from the one before, fresh memory is empty,
// and nothing is ever cleared. Only that word must arrive whole, which 8 bytes do. Positions are counted in device
// memory and never reset: graphs may be replayed. A wait for room, like every wait, ends at the deadline or by an
// abort; the position stays claimed then, and the port is of no more use, as the communicator is of none.
#pragma once

#include "tutti/device/channel.cuh"

namespace tutti::device {

// What a request asks for, in this order: any sum of them.
inline constexpr std::uint32_t kPortPut = 1, kPortSignal = 2, kPortFlush = 4;
inline constexpr std::uint32_t kPortIds = 1u << 20;  // numbers of ports and of memories are below it

struct PortRequest {
  std::uint32_t kind = 0;
  std::uint32_t port = 0;
  std::uint32_t to_memory = 0, from_memory = 0;
  std::uint64_t to = 0, from = 0;  // offsets in the peer's part of one memory and in this rank's part of the other
  std::uint64_t bytes = 0;
};

// A request as it lies in the ring.
struct alignas(32) PortSlot {
  Pair64 offsets;  // to, from
  std::uint64_t bytes;
  std::uint64_t commit;  // parity of the lap (bit 63), kind, port, to_memory, from_memory
};

TUTTI_DEVICE std::uint64_t port_parity(std::uint64_t position, std::uint32_t size) {
  return (position / size & 1) ^ 1;  // 1 in the first lap: fresh memory, all zero, holds no request
}
TUTTI_DEVICE std::uint64_t pack_commit(const PortRequest& r, std::uint64_t parity) {
  return parity << 63 | static_cast<std::uint64_t>(r.kind & 7) << 60 | static_cast<std::uint64_t>(r.port) << 40 |
         static_cast<std::uint64_t>(r.to_memory) << 20 | r.from_memory;
}

// The writing side of the ring, for any number of threads of one device.
struct PortFifo {
  PortSlot* slots = nullptr;            // pinned host memory, `size` of them
  std::uint64_t* tail = nullptr;        // pinned host memory: requests that the proxy has taken
  std::uint64_t* head = nullptr;        // device memory: positions that were claimed
  std::uint64_t* known_tail = nullptr;  // device memory: a tail that somebody has seen; saves a look across the bus
  std::uint32_t size = 0;               // a power of two

  // Called by one thread of a team. Gives the request's position. False: the ring stayed full until the wait had to
  // end.
  TUTTI_DEVICE bool push(const Control& control, const PortRequest& request, std::uint64_t& position) const {
    position = fetch_add_relaxed(head);  // relaxed: all that it orders is who gets which position
    // acquire, here and below: pairs with the release of the tail (through known_tail's own), so that the proxy has
    // read the slot before it is written again.
    if (position >= load_acquire(known_tail) + size) {
      std::uint64_t seen = 0;
      const bool room = wait_until(control, Awaited{control.rank, position, 0}, [&] {
        seen = load_acquire(tail);
        return position < seen + size;
      });
      if (!room) return false;
      store_release(known_tail, seen);  // an older value written later costs a look, nothing else
    }
    PortSlot& slot = slots[position & (size - 1)];
    store_relaxed(&slot.offsets, Pair64{request.to, request.from});
    store_relaxed(&slot.bytes, request.bytes);
    // release: publishes the request, and what the team has written; pairs with the proxy's acquire.
    store_release(&slot.commit, pack_commit(request, port_parity(position, size)));
    return true;
  }
};

// All members are called by all threads of a team. They return false, on thread 0 alone, if a wait ended without
// success; the failure is then recorded, and the kernel should return.
struct PortChannel {
  Control control;
  int peer = -1;
  std::uint32_t port = 0;
  // CudaMemory::port_memory(): puts go into the peer's part of one and come from this rank's part of the other. Both
  // are the memory that made the port, unless they are set.
  std::uint32_t to_memory = 0, from_memory = 0;
  PortFifo fifo;
  const std::uint64_t* flushed = nullptr;  // pinned host memory: requests to this peer up to here are flushed
  Semaphore semaphore;                     // counts the peer's signals; the proxy counts this rank's

  // Offsets in bytes, at any alignment; of any length.
  template <class Team>
  TUTTI_DEVICE bool put(const Team& team, std::size_t to, std::size_t from, std::size_t bytes) const {
    return ask(team, kPortPut, to, from, bytes);
  }
  template <class Team>
  TUTTI_DEVICE bool signal(const Team& team) const {
    return ask(team, kPortSignal, 0, 0, 0);
  }
  template <class Team>
  TUTTI_DEVICE bool flush(const Team& team) const {
    return ask(team, kPortFlush, 0, 0, 0);
  }
  template <class Team>
  TUTTI_DEVICE bool put_with_signal(const Team& team, std::size_t to, std::size_t from, std::size_t bytes) const {
    return ask(team, kPortPut | kPortSignal, to, from, bytes);
  }
  template <class Team>
  TUTTI_DEVICE bool put_with_signal_and_flush(const Team& team, std::size_t to, std::size_t from,
                                              std::size_t bytes) const {
    return ask(team, kPortPut | kPortSignal | kPortFlush, to, from, bytes);
  }
  // For the peer's next signal over this port. One team at a time.
  template <class Team>
  TUTTI_DEVICE bool wait(const Team& team) const {
    const bool ok = team.thread() != 0 || semaphore.wait(control, peer);
    team.sync();
    return ok;
  }
  // True if wait() would return at once. For one thread.
  TUTTI_DEVICE bool poll() const { return semaphore.poll(); }

 private:
  template <class Team>
  TUTTI_DEVICE bool ask(const Team& team, std::uint32_t kind, std::size_t to, std::size_t from,
                        std::size_t bytes) const {
    team.sync();  // what the team has written comes before the release of thread 0
    bool ok = true;
    if (team.thread() == 0) {
      std::uint64_t position = 0;
      ok = fifo.push(control, PortRequest{kind, port, to_memory, from_memory, to, from, bytes}, position);
      if (ok && (kind & kPortFlush) != 0) {
        // acquire: the copies have read their sources.
        ok = wait_until(control, Awaited{control.rank, position, 0}, [&] { return load_acquire(flushed) > position; });
      }
    }
    if ((kind & kPortFlush) != 0) team.sync();
    return ok;
  }
};

}  // namespace tutti::device
