// How a communicator fails: what is behind it, who is told, and what later calls raise.
#include <new>
#include <string>
#include <vector>

#include "base/thread.h"
#include "communicator/communicator_impl.h"

namespace tutti {
namespace {

// More than a peer can have on its way to a port: what it has said last lies behind that.
constexpr int kMostPasses = 256;

}  // namespace

Outcome CommunicatorImpl::look_at(int peer) const noexcept {
  const int here = formed_.host != nullptr && peer != rank_ ? place_.place_here(peer) : -1;
  if (here >= 0 && formed_.host->died(here)) return {Status::kPeerLost, peer};
  return port_->look(peer);
}

// Where this rank has had no memory for what it reads, others have given up since, and it may have met that first.
Outcome CommunicatorImpl::want_behind(Outcome outcome) const noexcept {
  const bool may_follow = outcome.status == Status::kPeerLost || outcome.status == Status::kPeerLeft ||
                          outcome.status == Status::kPeerFailed || outcome.status == Status::kTimeout;
  if (!may_follow) return kOkOutcome;
  port_->progress();  // finds the end of what is read no more
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    if (const Outcome end = port_->look(peer); end.status == Status::kExhausted) return end;
  }
  return kOkOutcome;
}

void CommunicatorImpl::find_cause(Outcome& outcome, FailureContext& context) const {
  if (const Outcome found = blames_itself(outcome) ? port_->lost() : kOkOutcome; !found.ok()) outcome = found;
  if (const Outcome want = want_behind(outcome); !want.ok()) {
    outcome = want;
    context.detail.clear();  // it is of what was waited for
    return;
  }
  trace_to_cause(outcome, context);
  if (outcome.status == Status::kPeerLost && outcome.peer >= 0) {
    const Transport* transport = formed_.transport_of_peer[static_cast<std::size_t>(outcome.peer)];
    if (transport != nullptr) context.why_lost = transport->why_lost(outcome.peer);
  }
  const bool lost_this_one = context.reported.status == Status::kPeerLost && context.reported.peer == rank_;
  if (outcome.status == Status::kPeerFailed && lost_this_one) context.want_here = want_here();
}

// For a connection with any peer: who says that it lost this rank may have heard it of another.
std::string CommunicatorImpl::want_here() const {
  for (int peer = 0; peer < size_; ++peer) {
    const Transport* transport = formed_.transport_of_peer[static_cast<std::size_t>(peer)];
    if (transport == nullptr) continue;
    if (std::string want = transport->want_here(peer); !want.empty()) return want;
  }
  return {};
}

void CommunicatorImpl::fail_by(Outcome outcome, const std::string& when, bool by_kin) noexcept {
  // acquire: as in throw_if_unusable(). What follows may take a while, and there may be many groups.
  if (forked_child() || failed_.load(std::memory_order_acquire)) return;
  FailureContext context;
  context.rank = rank_;
  Error error = starved_;
  try {
    find_cause(outcome, context);
    error = Error(outcome.status == Status::kExhausted ? ErrorKind::kExhausted : ErrorKind::kPeerLost,
                  "group '" + options_.name + "' on rank " + std::to_string(rank_) + ": " + when +
                      text_of_loss(outcome, context));
  } catch (const std::bad_alloc&) {  // then the error says less
  }
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    publish(error);
  }
  tell_failure(outcome, context, !by_kin);
}

// Before any lock: a thread of the parent may have held it at the fork.
void CommunicatorImpl::throw_if_forked() const {
  if (forked_child()) [[unlikely]]
    throw parents_error();
}

Error CommunicatorImpl::parents_error() const {
  return {ErrorKind::kUnsupported,
          "group '" + options_.name + "' of rank " + std::to_string(rank_) +
              " belongs to the parent: Tutti is disabled in a forked child. Make the call in the parent, or start this "
              "process by spawn or forkserver and make a group in it"};
}

void CommunicatorImpl::throw_if_unusable() const {
  throw_if_forked();
  // acquire: pairs with the releases that follow a write of failure_.
  if (failed_.load(std::memory_order_acquire)) [[unlikely]] {
    const std::lock_guard lock(failure_mutex_);
    throw with_own_text(*failure_);
  }
}

// Fills in what the rank to blame has told of itself. On this host, whoever such a peer lost is lost to us too: the
// message names the rank that died, not the one that noticed first.
void CommunicatorImpl::trace_to_cause(Outcome& outcome, FailureContext& context) const {
  const HostChannel* host = formed_.host.get();
  int index = host != nullptr ? place_.place_here(outcome.peer) : -1;
  if (index < 0) {
    if (outcome.status != Status::kPeerFailed || outcome.peer < 0) return;
    const MessagePort::Said said = port_->said_by(outcome.peer);
    context.reported = said.outcome;
    context.reported_reason = said.reason;
    return;
  }
  // What a peer says of a rank is none until it has been looked at.
  const auto reported_by = [&](int peer) {
    Outcome said = host->reported(peer);
    if (said.peer < 0 || said.peer >= size_) said.peer = -1;
    return said;
  };
  // Who has only learnt of it from another is not who failed.
  for (int hops = 0; hops < host->ranks() && outcome.status == Status::kPeerFailed; ++hops) {
    const Outcome said = reported_by(index);
    const int next = said.status == Status::kPeerFailed && said.peer != rank_ ? place_.place_here(said.peer) : -1;
    if (next < 0 || host->reported(next).ok()) break;
    index = next;
    outcome.peer = said.peer;
  }
  context.reported = reported_by(index);
  context.reported_reason = host->reason_of(index);
  const Status cause = context.reported.status;
  if (outcome.status == Status::kPeerFailed && (cause == Status::kPeerLost || cause == Status::kPeerLeft) &&
      context.reported.peer >= 0 && context.reported.peer != rank_) {
    outcome = context.reported;
    index = place_.place_here(outcome.peer);
  }
  // A reason is known of an abort only: whoever brought it here from another host has aborted nothing.
  const int aborter = context.reported.peer;
  if (outcome.status == Status::kPeerFailed && cause == Status::kPeerFailed && !context.reported_reason.empty() &&
      aborter >= 0 && aborter != rank_ && place_.place_here(aborter) < 0) {
    outcome.peer = aborter;
    context.reported = {Status::kAborted, aborter};
    index = -1;
  }
  if (index >= 0) context.peer_pid = host->pid(index);
}

// Under failure_mutex_. The first failure decides what all later calls raise.
void CommunicatorImpl::publish(const Error& error) noexcept {
  failure_.emplace(with_own_text(error));
  // release: publishes failure_; pairs with the acquire in throw_if_unusable().
  failed_.store(true, std::memory_order_release);
}

Error CommunicatorImpl::poison(Outcome outcome, FailureContext& context) noexcept {
  if (forked_child()) return parents_error();  // by a handler of a signal, in the course of a wait
  // Another thread has failed the group, or it has been in another group that a rank was lost: then that is the error.
  const bool found_elsewhere = blames_itself(outcome);
  context.rank = rank_;
  Error error = starved_;
  try {
    context.group = options_.name;
    find_cause(outcome, context);
  } catch (const std::bad_alloc&) {  // then the error says less
  }
  bool first = false;
  {
    const std::lock_guard lock(failure_mutex_);
    first = !failure_;
    // After an abort() here, a peer that has learnt of it may be noticed before the abort itself.
    if (failure_ && failure_->kind() == ErrorKind::kAborted) outcome = {Status::kAborted, rank_};
    try {
      context.reason = abort_reason_;
      error = failure_ && found_elsewhere ? with_own_text(*failure_) : make_error(outcome, context);
    } catch (const std::bad_alloc&) {  // it stays as it was made beforehand
    }
    if (first) {
      publish(error);
      logger_.info(error.what());  // the call raises it too
    }
  }
  tell_failure(outcome, context, first);
  return error;
}

// Peers on this host learn of it at once, those of others by the end of their links, and this rank's other groups if
// they are `to_tell`: by the first failure only, for the port says after it of all peers that they are lost.
void CommunicatorImpl::tell_failure(Outcome outcome, const FailureContext& context, bool to_tell) noexcept {
  metrics_.count_error();
  // Not by what others say, which tell their groups themselves.
  const Outcome own =
      to_tell && outcome.status == Status::kPeerLost && outcome.peer >= 0 ? look_at(outcome.peer) : kOkOutcome;
  // Who learns of it from this rank learns why it was aborted, too.
  const std::string& reason = outcome.status == Status::kPeerFailed ? context.reported_reason : context.reason;
  if (formed_.host != nullptr) formed_.host->report(outcome, context.mine.sequence, reason);
  port_->fail(outcome, reason, context.reported);
  if (own.status == Status::kPeerLost && own.peer == outcome.peer) tell_kin(outcome.peer, context.why_lost.empty());
}

// `ended`: the rank's process has, or its link; else there was no connection to it, which says nothing of those that
// other groups may have.
void CommunicatorImpl::tell_kin(int lost, bool ended) noexcept {
  std::vector<Family::Kin> kin;
  try {
    kin = family_->with(*this, lost);
    const std::string when = "as group '" + options_.name + "' has found, ";
    for (const Family::Kin& other : kin) {
      MessagePort& port = *other.group->port_;
      for (int passes = 0; passes < kMostPasses && port.progress(); ++passes) {  // it may have said that it leaves
      }
      const Outcome there = port.look(other.rank);
      if (there.status == Status::kPeerLeft) continue;  // the group needs it no more
      const bool found = there.status == Status::kPeerLost && there.peer == other.rank;
      if (ended || found) other.group->fail_by({Status::kPeerLost, other.rank}, when, true);
    }
  } catch (const std::bad_alloc&) {  // then they learn of it by their own calls
  }
  // What ends with these references must not be waited for here, in the midst of a call.
  const CountsAsLibraryThread here;
  kin.clear();
}

}  // namespace tutti
