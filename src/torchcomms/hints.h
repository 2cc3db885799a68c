// Hints of TorchComms that are Tutti's: their names begin with "tutti.". Those of others are for other backends.
//
// Thread rule: any thread.
#pragma once

#include <string>
#include <unordered_map>

namespace tutti::torchcomms {

using Hints = std::unordered_map<std::string, std::string>;

// What is wrong with the hints of a communicator, and the remedy; empty: nothing. Whether there is an algorithm of the
// name, the group says that is made with them.
std::string wrong_hint(const Hints& hints);
// As above, of a call: none of Tutti's hints is for calls.
std::string wrong_hint_of_call(const Hints& hints);
// Of a communicator whose group has been made with `made`. What settles how a group is made cannot change any more.
std::string unchangeable_hint(const Hints& made, const Hints& hints);

// Puts what a group was made with back among `hints`.
void keep_settled(const Hints& made, Hints& hints);

// Whether a failure ends the process: "tutti.abort_process".
bool failure_aborts(const Hints& hints);

}  // namespace tutti::torchcomms
