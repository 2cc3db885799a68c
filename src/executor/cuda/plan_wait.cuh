// How a thread block of a plan waits: for a peer, or for another block of its own rank.
//
// Thread rule: of one lane.
#pragma once

#include "tutti/device/wait.cuh"

#if !defined(__CUDA_ARCH__)
#include <thread>
#endif

namespace tutti::executor {

// One look at the world while a lane waits; `started` is 0 at the first. True: the wait must end.
//
// Another block of this rank waits itself: its wait fails first, and says for whom. The limit is there in case that
// none does.
TUTTI_DEVICE bool must_end(const device::Control& control, const device::Awaited& awaited, std::uint64_t& started) {
  if (device::load_relaxed(control.poison) != 0) return true;
  const std::uint64_t now = device::clock_ns();
  if (started == 0) started = now;
  const std::uint64_t waited = now - started;
  const std::uint64_t limit = device::timeout_ns(*control.host, awaited.ticket);
  if (awaited.peer == control.rank) return waited / 2 > limit;
  return waited > limit || device::load_relaxed(&control.host->abort) != 0;
}

// Of a wait that must end: the record of the failure. A call of its own, since it is rare.
TUTTI_DEVICE_CALL void record_failure(const device::Control& control, device::Awaited awaited) {
  std::uint64_t long_ago = device::clock_ns() - device::timeout_ns(*control.host, awaited.ticket) - 2;
  static_cast<void>(device::give_up(control, awaited, long_ago));
}

// Polls `ready`, which may change awaited.peer, until it is true; or false: record_failure() is due.
template <class Ready>
TUTTI_DEVICE bool wait_in_plan(const device::Control& control, const device::Awaited& awaited, Ready ready) {
  std::uint64_t started = 0;
  for (std::uint32_t polls = 1; !ready(); ++polls) {
#if !defined(__CUDA_ARCH__)
    std::this_thread::yield();
#endif
    if (polls % device::kPollsPerLook == 0 && must_end(control, awaited, started)) return false;
  }
  return true;
}

}  // namespace tutti::executor
