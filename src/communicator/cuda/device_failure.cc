#include "communicator/cuda/device_failure.h"

namespace tutti::cuda {
namespace {

using Records = std::unordered_map<std::uint32_t, CallRecord>;

std::string call_text(std::uint64_t fingerprint, const Records& records) {
  const auto found = records.find(static_cast<std::uint32_t>(fingerprint));
  if (found == records.end()) return "another call";
  CallRecord record = found->second;
  std::string text = tutti::describe(record);
  // The number is that of the last call of this kind issued here, which need not be the one that failed.
  const std::size_t hash = text.find(" #");
  if (hash != std::string::npos) text.erase(hash, text.find(' ', hash + 1) - hash);
  return text;
}

}  // namespace

std::optional<Error> failure_of(const device::HostControl& control, int rank, const std::string& name,
                                const std::string& abort_reason, const Records& records) {
  // acquire: the record is complete.
  const auto code = static_cast<device::FailureCode>(device::load_acquire(&control.code));
  const std::string who = "group '" + name + "', rank " + std::to_string(rank) + ": ";
  if (code == device::FailureCode::kNone) {
    if (abort_reason.empty()) return std::nullopt;
    return Error(ErrorKind::kAborted, who + abort_reason);
  }
  const auto peer = static_cast<int>(control.peer);
  const auto reporter = static_cast<int>(control.reporter);
  const std::string found = reporter == rank ? "" : " (found by rank " + std::to_string(reporter) + ")";
  const std::string call = call_text(control.mine, records);
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
                   who + "the ranks make different calls" + found + ": this rank " + call +
                       (reporter == rank ? ", rank " + std::to_string(peer) + " " + call_text(control.theirs, records)
                                         : std::string()) +
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
    case device::FailureCode::kPeerFailed:
    case device::FailureCode::kNone:
      break;
  }
  return Error(ErrorKind::kPeerLost, who + "rank " + std::to_string(peer) + " has failed");
}

}  // namespace tutti::cuda
