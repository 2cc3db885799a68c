// Groups that make themselves: one process makes an id, whatever starts the others carries its 128 bytes to them (a
// pipe, a broadcast, a file that only the job reads), and all join. No store and no launcher's variables are needed.
//
// The id holds an address and a random secret. Who knows it can join the group, and nobody else: keep it as you would a
// key. Its maker answers from a thread until the group has formed, so it must live so long; it need not be a rank (then
// the thread stays until it ends). Where the group does not form, a maker that is a rank answers until all ranks have
// come and heard why, at most for the group's timeout, or 20 s if that is more. At most 64 ids of a process may be
// unused: a further one ends the oldest.
//
// Thread rule: every function may be called from any thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti {

inline constexpr std::size_t kGroupIdBytes = 128;
using GroupId = std::array<char, kGroupIdBytes>;

// The id of one group. `address`: a name or number of this machine by which all ranks reach it ("localhost" if they are
// all here); empty: that of TUTTI_SOCKET_IFNAME, or towards MASTER_ADDR, or of the first interface that leads outside.
// Throws Error: kInvalidArgument for an address or interface that is none, kExhausted.
GroupId make_group_id(const Config& config, const std::string& address = {});

// Collective over `size` ranks: all join with the same id, once. Returns when all have joined; nothing of the id is in
// use then. The group's connections prove the id's secret, and `options.config.secret` if it is set. Throws Error: as
// Communicator::create, and kPeerLost at once if the maker of the id has ended, or a rank that has begun to join does,
// whatever they have forked. Whatever keeps a rank from joining is told to the others.
std::shared_ptr<Communicator> join_group(const GroupId& id, int rank, int size, const CommunicatorOptions& options);

// With the options that `settings` gives; what it throws keeps this rank from joining. For options that are read from
// what surrounds a program, and may be wrong on one rank alone.
std::shared_ptr<Communicator> join_group(const GroupId& id, int rank, int size,
                                         const std::function<CommunicatorOptions()>& settings);

// Collective over the ranks of `parent`, as a call of it: those with the same `color` make a group, in the order of
// `key` and then of rank, with the parent's options. Null for a rank whose color is negative. Each part forms in
// messages of `parent`: no store is asked, and nothing is opened for it. Throws Error: what the call does, as
// Communicator::create, and kPeerLost within a second for a member that dies. What keeps a rank from joining its part
// is told to the part's others; the other parts form.
// A death of which the parent or a part learns ends both, where the dead rank is in them.
std::shared_ptr<Communicator> split_group(Communicator& parent, int color, int key, const std::string& name);
// How often that has been called, the same on all ranks.
std::uint64_t splits_of(const Communicator& parent) noexcept;

// Communicator::shrink without a store: the survivors of `group` give one new id, made by one of them or by anybody who
// lives on; who waits for it calls abort() first. What the new group's connections prove is what the old group's do.
// Throws Error: as shrink, and kPeerLost at once if the maker of the id has ended.
std::shared_ptr<Communicator> shrink_group(Communicator& group, const GroupId& id, std::chrono::milliseconds timeout,
                                           std::vector<int>* members);

}  // namespace tutti
