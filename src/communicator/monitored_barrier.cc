// A barrier that names who is missing.
//
// Every rank reports to rank 0 and waits for its answer; rank 0 collects the reports with one deadline for all.
// Messages of 4 bytes, no collective, so that it can be called to find out where the ranks of a stuck job are; a
// failure here leaves the communicator usable. The protocol of gloo's monitored barrier in torch.
#include <algorithm>

#include "base/names.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

constexpr std::uint64_t kMonitoredTag = std::uint64_t{1} << 62;

}  // namespace

void CommunicatorImpl::monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks) {
  check_call_timeout("monitored_barrier", timeout);
  throw_if_unusable();
  const auto limit = effective(timeout);
  // relaxed: counts calls on this rank; all ranks count alike.
  const std::uint64_t turn = monitored_barriers_.fetch_add(1, std::memory_order_relaxed);
  const std::uint64_t report_tag = kMonitoredTag | (2 * turn);
  const std::uint64_t answer_tag = report_tag + 1;
  std::uint32_t verdict = 1;
  const auto exchange = [&](bool is_send, int peer, std::uint64_t tag, Deadline& deadline) {
    MessageOp op;
    const CallRecord record = record_of_message(is_send, 1, DataType::kUint32, tag);
    if (is_send) {
      port_->post_send(op, peer, tag, &verdict, sizeof(verdict), record);
    } else {
      port_->post_recv(op, peer, tag, &verdict, sizeof(verdict), record);
    }
    const Outcome outcome = port_->wait(op, deadline);
    throw_if_forked();  // by a handler of a signal, in the course of the wait: the barrier is the parent's
    if (!outcome.ok()) port_->cancel(op);
    throw_if_unusable();
    // Not who is late: who has died, left or failed, whoever is waited for.
    if (!outcome.ok() && outcome.status != Status::kTimeout) {
      std::rethrow_exception(message_failed(outcome, op, limit));
    }
    return outcome;
  };
  Deadline deadline = Deadline::after(limit);
  deadline.expired();  // starts the clock: it spans all peers
  if (rank_ != 0) {
    Outcome outcome = exchange(true, 0, report_tag, deadline);
    if (outcome.ok()) outcome = exchange(false, 0, answer_tag, deadline);
    if (outcome.ok() && verdict != 0) return;
    throw_error(ErrorKind::kTimeout,
                outcome.ok() ? "Rank " + std::to_string(rank_) +
                                   " successfully reached monitoredBarrier, but received errors while "
                                   "waiting for send/recv from rank 0: it found ranks missing."
                             : "Rank " + std::to_string(rank_) +
                                   " successfully reached monitoredBarrier, but received errors while "
                                   "waiting for send/recv from rank 0. Please check rank 0 logs for faulty rank.");
  }
  std::vector<int> missing;
  for (int peer = 1; peer < size_; ++peer) {
    if (exchange(false, peer, report_tag, deadline).ok()) continue;
    missing.push_back(peer);
    if (!wait_all_ranks) break;
  }
  verdict = missing.empty() ? 1 : 0;
  Deadline answer_deadline = Deadline::after(limit);
  for (int peer = 1; peer < size_; ++peer) {
    if (std::find(missing.begin(), missing.end(), peer) == missing.end() &&
        (missing.empty() || wait_all_ranks || peer < missing.front())) {
      exchange(true, peer, answer_tag, answer_deadline);
    }
  }
  if (missing.empty()) return;
  const std::string text = "[Rank 0]: " + std::string(missing.size() == 1 ? "Rank " : "Ranks ") +
                           joined(missing, ", ") + " failed to pass monitoredBarrier in " +
                           std::to_string(limit.count()) + " ms";
  throw_error(ErrorKind::kTimeout, text);
}

}  // namespace tutti
