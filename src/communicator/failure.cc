#include "communicator/failure.h"

#include <new>

#include "bootstrap/exchange.h"

namespace tutti {
namespace {

std::string who(int rank, int pid) {
  std::string text = "rank " + std::to_string(rank);
  if (pid > 0) text += " (pid " + std::to_string(pid) + ")";
  return text;
}

std::string timeout_text(int peer, const FailureContext& c) {
  std::string text = "timed out after " + std::to_string(c.timeout.count()) + " ms";
  if (!c.missing.empty()) {
    text += ": " + name_ranks(c.missing) + (c.missing.size() == 1 ? " has" : " have") + " not arrived in this call";
  } else if (peer >= 0) {
    text += " waiting for " + who(peer, c.peer_pid);
  } else if (c.mine.call == kCallRecv) {
    text += " waiting for a message of any rank";
  }
  if (!c.detail.empty()) text += " (" + c.detail + ")";
  return text + (c.missing.empty() && peer < 0 ? ". A rank" : ". It") +
         " may be stuck, stopped, slow or past this call; a longer timeout is set when the group is made";
}

std::string mismatch_text(int peer, const FailureContext& c) {
  std::string text =
      "the ranks make different calls: rank " + std::to_string(c.rank) + " calls " + describe(c.ours, c.our_algorithm);
  if (peer < 0) return text + ", a peer calls something else";
  text += ", rank " + std::to_string(peer) + " calls " + describe(c.theirs, c.their_algorithm);
  if (describe(c.ours) == describe(c.theirs)) text += ", with blocks of other sizes";
  return text + ". All ranks must make the same calls in the same order";
}

constexpr const char* kRestart = ". Start the job again, or go on without it by shrink()";

}  // namespace

std::string reported_text(Outcome reported, const std::string& reason) {
  const std::string other = reported.peer >= 0 ? " rank " + std::to_string(reported.peer) : " a peer";
  switch (reported.status) {
    case Status::kTimeout:
      return "it timed out waiting for" + other;
    case Status::kPeerLost:
      return "it lost" + other;
    case Status::kPeerLeft:
      return "it needed" + other + ", which had left";
    case Status::kPeerFailed:
      return "it learnt of a failure of" + other + (reason.empty() ? "" : ", which aborted the group: " + reason);
    case Status::kMismatch:
      return "its call differs from that of" + other;
    case Status::kAborted:
      return "it aborted the group" + (reason.empty() ? "" : ": " + reason);
    case Status::kExhausted:
      return "it had no memory to go on";
    case Status::kCorrupt:
      return "it found what" + other + " says in shared memory to be impossible";
    default:
      return "it failed";
  }
}

std::string text_of_loss(Outcome outcome, const FailureContext& c) {
  const std::string peer = outcome.peer >= 0 ? who(outcome.peer, c.peer_pid) : "a peer";
  if (outcome.status == Status::kPeerLost) {
    return peer + " " + (c.why_lost.empty() ? "died or cannot be reached any more" : c.why_lost) + kRestart;
  }
  if (outcome.status == Status::kExhausted) {
    const bool with_it = outcome.peer >= 0 && outcome.peer != c.rank;
    const std::string what = with_it ? "messages with rank " + std::to_string(outcome.peer) : "this call";
    return (c.detail.empty() ? "no memory for " + what : c.detail) + kRestart;
  }
  if (outcome.status == Status::kPeerLeft) return peer + " has left the group (it exited or destroyed it)" + kRestart;
  // What this rank itself was waiting for may be the cause of the peer's failure, too.
  return peer + " gave up: " + reported_text(c.reported, c.reported_reason) +
         (c.want_here.empty() ? "" : "; " + c.want_here) + (c.detail.empty() ? "" : " (" + c.detail + ")") + kRestart;
}

Error with_own_text(const Error& error) noexcept {
  try {
    return {error.kind(), std::string(error.what())};
  } catch (const std::bad_alloc&) {
    return error;
  }
}

Error make_error(Outcome outcome, const FailureContext& c) {
  const std::string head = describe(c.mine) + " on rank " + std::to_string(c.rank) + " of group '" + c.group + "': ";
  const std::string peer = outcome.peer >= 0 ? who(outcome.peer, c.peer_pid) : "a peer";
  switch (outcome.status) {
    case Status::kTimeout:
      return Error(ErrorKind::kTimeout, head + timeout_text(outcome.peer, c));
    case Status::kPeerLost:
    case Status::kPeerLeft:
    case Status::kPeerFailed:
      return Error(ErrorKind::kPeerLost, head + text_of_loss(outcome, c));
    case Status::kMismatch:
      return Error(ErrorKind::kMismatch, head + mismatch_text(outcome.peer, c));
    case Status::kAborted:
      return Error(ErrorKind::kAborted, head + "aborted on this rank" + (c.reason.empty() ? "" : ": " + c.reason));
    case Status::kCorrupt:
      return Error(
          ErrorKind::kInternal,
          head + peer + " says in shared memory that memory of this call lies outside of its arena" + kRestart);
    case Status::kExhausted:
      return Error(ErrorKind::kExhausted, head + text_of_loss(outcome, c));
    default:
      if (!c.detail.empty()) return Error(ErrorKind::kInternal, head + c.detail);
      return Error(ErrorKind::kInternal, head + "internal error; please report it with the output of 'tutti doctor'");
  }
}

}  // namespace tutti
