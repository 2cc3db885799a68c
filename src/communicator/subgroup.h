// Groups of some ranks of a group, formed in its messages: no store is asked, and ranks outside of them take no part.
//
// Thread rule: any thread; several groups may form over one at the same time, in any order.
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tutti/communicator.h"

namespace tutti {

// Whether that can be tried: false once the group has failed. Throws Error(kPeerLost) if it has and a member has died
// or left, whom it names. Where a rank of this host has failed, this one's part of the group does here, as it would by
// the next call: so members that have not heard of it hear that this one does not come.
bool can_form_in(Communicator& group, const std::vector<int>& members);

// Collective over `members`, ranks of `group`, in the order of their new ranks. `id`: equal on all of them. No two of
// them form anything else under it at the same time, nor have they failed to; where their lists differ, they meet and
// say so. `settings` gives the options of this rank. Independent of the calls of the group, which may be under way.
// Throws what Communicator::create does, and within a second Error(kPeerLost) naming a member that dies, what the group
// fails with, and what `settings` throws: whatever keeps a rank from joining is told to the others.
std::shared_ptr<Communicator> form_in(Communicator& group, const std::vector<int>& members, const std::string& id,
                                      const std::function<CommunicatorOptions()>& settings);

// Tells the others that this rank will not come. Never throws.
void tell_in(Communicator& group, const std::vector<int>& members, const std::string& id,
             const std::exception& why) noexcept;

}  // namespace tutti
