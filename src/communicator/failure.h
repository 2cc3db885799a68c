// The words for what went wrong: one place turns an Outcome into an Error.
//
// Every message names this call, the peer to blame and what to do next.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "base/outcome.h"
#include "channel/call_record.h"
#include "tutti/error.h"

namespace tutti {

struct FailureContext {
  std::string group;            // name of the communicator
  int rank = 0;                 // of this process
  CallRecord mine;              // the call that failed
  CallRecord theirs;            // kMismatch: what outcome.peer called instead ...
  CallRecord ours;              // ... and what this rank had called there
  std::string their_algorithm;  // the names in these records in full, where they are known
  std::string our_algorithm;
  std::chrono::milliseconds timeout{};  // kTimeout: how long was waited
  std::vector<int> missing;             // kTimeout: ranks that have not arrived
  std::string detail;                   // where in a plan this rank was waiting; kInternal, kExhausted: what has failed
  int peer_pid = 0;
  std::string why_lost;   // kPeerLost: what became of the link, as the rest of a sentence; empty: no more is known
  std::string want_here;  // kPeerFailed, of a peer that lost this rank: what was wanting here for a link
  Outcome reported;       // kPeerFailed: what the peer reported ...
  std::string reported_reason;  // ... and why it did what it says
  std::string reason;           // kAborted: why
};

Error make_error(Outcome outcome, const FailureContext& context);
// A copy for another thread: copies of a std::runtime_error share its text, and whoever lets go of it last frees what
// others have read, ordered by a count inside the standard library alone, which no thread sanitizer sees. Without
// memory it is shared.
Error with_own_text(const Error& error) noexcept;
// What a peer said of its own failure: no pids, the call is its own.
std::string reported_text(Outcome reported, const std::string& reason);
// What has become of outcome.peer (kPeerLost, kPeerLeft, kPeerFailed), or what there is no memory for (kExhausted):
// "rank 2 (pid 41) died ...", and what to do.
std::string text_of_loss(Outcome outcome, const FailureContext& context);

}  // namespace tutti
