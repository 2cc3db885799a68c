// Finds out which ranks really share memory, and gives each what it needs to use it.
//
// Ranks with equal hints (TUTTI_HOST_ID, else boot id and network namespace) try: the lowest of them, the leader,
// makes a memfd segment and listens on an abstract Unix socket; the others connect, prove the shared secret by HMAC,
// receive the segment by SCM_RIGHTS and map it. Who cannot forms a host of its own; only a leader that has no
// descriptors for its members ends it for all, since they would wait for it. The leader also hands every
// member the pidfds and arenas of all others, so that it works without a common PID namespace.
//
// Cost in operations of the store, a rank: one set and one multi_get (all ranks' cards; one get of more than
// kMostDirect ranks, see exchange.h) when all share one host; with several hosts one multi_get more (one get where more
// than kMostDirect of them have several ranks: rank 0 reads for all), and one set more of each leader. Then two
// exchanges over the Unix socket. 2 ranks took 0.3 to 0.4 ms over our TCP store (p50 of 200,
// two busy cores). A rank that cannot join costs its leader one look into the store after 100 ms.
//
// Ownership: the group owns its descriptors, all closed on exec; sockets are closed when it returns, and in a forked
// child at once. Thread rule: one thread a rank; ranks may be threads of one process. In that case, and for the rank
// itself, `pidfd` and `arena` stay empty: the process has both.
#pragma once

#include <chrono>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "base/peer_processes.h"
#include "base/unique_fd.h"
#include "bootstrap/agreed_settings.h"
#include "tutti/config.h"
#include "tutti/store.h"

namespace tutti {

struct HostMember {
  int rank = -1;
  int pid = 0;  // 0 when not visible
  ProcessName process;
  UniqueFd pidfd;  // empty when the system has none; then only the segment's flags and heartbeats tell
  UniqueFd arena;  // empty when that process has no arena
  std::uint64_t arena_id = 0;
  std::uint64_t arena_bytes = 0;
};

struct HostGroup {
  std::vector<int> host_of;         // for every rank of the communicator: the lowest rank of its host
  std::vector<HostMember> members;  // of this rank's host, ascending by rank, itself included (no pidfd of itself)
  int index = 0;                    // of this rank among them
  UniqueFd segment;                 // empty when alone on the host
  std::size_t segment_bytes = 0;
  int segment_ranks = 1;  // that it was made for: the members, and any that could not map it after all
  // Why this rank shares no memory with others of its hint, where something was wanting; else empty.
  std::string alone_because;
  std::string secret;       // the one in force, for further connections of this communicator
  std::string differences;  // of optional settings: compare_settings()
};

struct HostGroupRequest {
  std::string id;  // of the communicator
  int rank = 0;
  int size = 1;
  std::string secret;   // for HMAC; equal on all ranks. Empty: rank 0 makes one up and its card passes it on
  std::string host_id;  // TUTTI_HOST_ID or empty
  int arena_fd = -1;
  std::uint64_t arena_id = 0;
  std::uint64_t arena_bytes = 0;
  std::function<std::size_t(int)> segment_bytes;     // for a host of n ranks; equal on all ranks
  int most_ranks = std::numeric_limits<int>::max();  // that can share one host's memory
  AgreedSettings settings;                           // compared
  std::chrono::milliseconds timeout{};
};

// Collective. Throws Error(kTimeout) naming the ranks that have not come; on all ranks Error(kMismatch) naming the
// settings that differ, their values and the ranks, Error(kUnsupported) if a host has too many ranks, and
// Error(kExhausted) naming a leader that is out of descriptors.
HostGroup form_host_group(Store& store, const HostGroupRequest& request);

}  // namespace tutti
