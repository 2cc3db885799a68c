#include "communicator/cuda/device_failure.h"

namespace tutti::cuda {
namespace {

constexpr const char* kUnknown = "another call";

std::string call_text(std::uint64_t fingerprint, int rank, const CallBoard& board) {
  std::optional<CallRecord> record = board.find(rank, static_cast<std::uint32_t>(fingerprint));
  if (!record) return kUnknown;
  // Without a plan's name it stands for how the call runs: not to be shown.
  const bool named = record->call < kCollectiveCount && record->uneven == 0 && record->name[0] != 0;
  if (!named) record->algorithm = 0;
  std::string text = tutti::describe(*record);
  // The number is that of the last call of this kind issued here, which need not be the one that failed.
  const std::size_t hash = text.find(" #");
  if (hash != std::string::npos) text.erase(hash, text.find(' ', hash + 1) - hash);
  return text;
}

// "this rank all_reduce f32[10] sum, rank 1 broadcast f32[10] root 0", as far as it is known here.
std::string both_calls(const device::HostControl& control, int rank, const CallBoard& board) {
  const auto blamed = static_cast<int>(control.peer);
  const bool known = control.theirs != 0 && control.theirs != control.mine;
  // A rank that is blamed itself, or makes the same call as the one that is, differs from the reporter.
  const int other = known && blamed != rank ? blamed : static_cast<int>(control.reporter);
  const std::string mine = call_text(control.mine, rank, board);
  const std::string theirs = known ? call_text(control.theirs, other, board) : kUnknown;
  std::string text = "this rank " + mine + ", rank " + std::to_string(other) + " " + theirs;
  if (mine == theirs && mine != kUnknown) {
    text += " by another algorithm or over other places of memory (TUTTI_CUDA_ALGORITHM must be equal on all ranks)";
  }
  return text;
}

}  // namespace

std::optional<Error> failure_of(const device::HostControl& control, int rank, const std::string& name,
                                const std::string& abort_reason, const CallBoard& board) {
  // acquire: the record is complete.
  const auto code = static_cast<device::FailureCode>(device::load_acquire(&control.code));
  if (code == device::FailureCode::kNone && abort_reason.empty()) return std::nullopt;  // asked before each call
  const std::string who = "group '" + name + "', rank " + std::to_string(rank) + ": ";
  if (code == device::FailureCode::kNone) return Error(ErrorKind::kAborted, who + abort_reason);
  const auto peer = static_cast<int>(control.peer);
  const auto reporter = static_cast<int>(control.reporter);
  const std::string found = reporter == rank ? "" : " (found by rank " + std::to_string(reporter) + ")";
  const std::string call = call_text(control.mine, rank, board);
  switch (code) {
    case device::FailureCode::kTimeout:
      if (peer == reporter) {  // no rank waits for itself, but for its own ports
        return Error(ErrorKind::kTimeout, who + "the ports of rank " + std::to_string(peer) +
                                              " did not carry out a request before the timeout; copies to a peer " +
                                              "take long, or that rank's host has no processor to spare");
      }
      return Error(ErrorKind::kTimeout, who + "rank " + std::to_string(peer) + " did not come to " + call +
                                            " before the timeout" + found + "; look at that rank, or allow more time");
    case device::FailureCode::kMismatch:
      return Error(ErrorKind::kMismatch,
                   who + "the ranks make different calls" + found + ": " + both_calls(control, rank, board) +
                       "; all ranks must issue the same calls in the same order, and replay the same graphs");
    case device::FailureCode::kAborted:
      if (peer == rank) return Error(ErrorKind::kAborted, who + (abort_reason.empty() ? "aborted" : abort_reason));
      return Error(ErrorKind::kPeerLost, who + "rank " + std::to_string(peer) + " aborted");
    case device::FailureCode::kOverlap:
      if (peer == rank) {
        return Error(ErrorKind::kInvalidArgument,
                     who + "two kernels of one communicator ran at the same time at " + call +
                         ": order graph replays and eager calls after each other, on one stream or by events");
      }
      return Error(ErrorKind::kPeerLost, who + "rank " + std::to_string(peer) + " ran two calls at the same time");
    case device::FailureCode::kGaveUp:
      if (peer == rank)
        return Error(ErrorKind::kInternal,
                     who + "its kernel has given up " + call +
                         ": it returned false though no wait had failed, or reduced more ranges "
                         "than there may be ranks; refuse what it cannot do by .refusal, and give "
                         "reduce() at most size() ranges at a time");
      return Error(ErrorKind::kPeerLost, who + "the kernel of rank " + std::to_string(peer) + " has given up " + call +
                                             "; look at that rank");
    case device::FailureCode::kPeerFailed:
    case device::FailureCode::kNone:
      break;
  }
  return Error(ErrorKind::kPeerLost, who + "rank " + std::to_string(peer) + " has failed");
}

}  // namespace tutti::cuda
