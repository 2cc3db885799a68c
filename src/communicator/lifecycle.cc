// How a communicator is made and ends; how it fails is failing.cc.
#include <algorithm>
#include <future>
#include <memory>

#include "algorithm/plan/plan_algorithm.h"
#include "algorithm/plan/verdict_store.h"
#include "base/no_memory.h"
#include "base/release.h"
#include "base/thread.h"
#include "bootstrap/exchange.h"
#include "communicator/call_check.h"
#include "communicator/communicator_impl.h"
#include "communicator/group_settings.h"
#include "device/cpu/arena.h"

namespace tutti {

namespace {

// A table counts only if all ranks have the same one, for the choice of an algorithm follows from it, and on one host,
// as it was measured.
void agree_on_tuning(Tuning& tuning, const FormedGroup& formed, int rank, const CommunicatorOptions& options) {
  if (rank == 0 && !tuning.complaint.empty()) {
    Logger(parse_log_level(options.config.log_level), rank).warning(tuning.complaint);
  }
  if (!formed.ranks.one_host() || formed.host == nullptr) {
    tuning = {};
    return;
  }
  if (formed.differences.empty()) return;
  if (rank == 0) {
    Logger(parse_log_level(options.config.log_level), rank).warning(not_used(options.name, formed.differences));
  }
  tuning = {};
}

// A user's plans first, then the library's own algorithms, then the plans that the tuning table may choose.
std::shared_ptr<const AlgorithmCollection> collect(const FormedGroup& formed, const GroupPlace& place,
                                                   const PlanFiles& plans, const Tuning& tuning) {
  if (!formed.arenas_mapped || (plans.files.empty() && tuning.plans.empty())) return AlgorithmCollection::defaults();
  auto collection = std::make_shared<AlgorithmCollection>(*AlgorithmCollection::defaults());
  collection->prefer(plan_algorithms(plans.files, place));
  for (auto& algorithm : plan_algorithms(tuning.plans, place)) collection->add(std::move(algorithm));
  return collection;
}

std::vector<TuningRule> rules(const FormedGroup& formed, int size, const Tuning& tuning) {
  if (tuning.table == nullptr) return {};
  return rules_of(*tuning.table, size, formed.host->crowded());
}

// The deleter of communicators. A callback may drop the last reference to its own, on a thread that the destructor
// waits for: then another one destroys it.
struct End {
  void operator()(CommunicatorImpl* communicator) const noexcept {
    if (!on_library_thread() || forked_child()) return Release()(communicator);
    try {
      start_thread("that ends a group", [communicator] { delete communicator; }).detach();
    } catch (const std::exception&) {
      communicator->abort_because(
          "its last reference was dropped by a callback, and no thread can be started to end it");
    }
  }
};

// The groups of this process, for finish_all().
class Living {
 public:
  static Living& instance() {
    static Living& living = *new Living;  // never destroyed: groups may outlive what is static
    return living;
  }
  void add(const std::shared_ptr<CommunicatorImpl>& group) {
    const std::lock_guard lock(mutex_);
    std::erase_if(groups_, [](const auto& known) { return known.expired(); });
    groups_.push_back(group);
  }
  std::vector<std::shared_ptr<CommunicatorImpl>> all() {
    const std::lock_guard lock(mutex_);
    std::vector<std::shared_ptr<CommunicatorImpl>> all;
    for (const auto& known : groups_) {
      if (auto group = known.lock()) all.push_back(std::move(group));
    }
    return all;
  }

 private:
  std::mutex mutex_;  // a leaf
  std::vector<std::weak_ptr<CommunicatorImpl>> groups_;
};

constexpr std::chrono::milliseconds kEndsSoon{2'000};
constexpr std::chrono::milliseconds kAtExit{200};

}  // namespace

std::shared_ptr<Communicator> Communicator::create(Store& store, const std::string& id, int rank, int size,
                                                   const CommunicatorOptions& options) {
  return CommunicatorImpl::form(store, id, rank, size, options, options.timeout);
}

std::shared_ptr<Communicator> CommunicatorImpl::form(Store& store, const std::string& id, int rank, int size,
                                                     const CommunicatorOptions& options,
                                                     std::chrono::milliseconds within) {
  check_group(rank, size);
  const auto form = [&]() -> std::shared_ptr<Communicator> {
    check_group_timeout(options.name, options.timeout);
    // First, so that a bad file is an error of its own and not a group that never forms.
    Tuning tuning = load_tuning(options.config, size);
    const PlanFiles plans = load_plans(options.config.plan_path, size, cache_folder(options.config));
    CommunicatorOptions forming = options;
    forming.timeout = within;
    FormedGroup formed = form_group(store, id, rank, size, forming, plans, tuning);
    agree_on_tuning(tuning, formed, rank, options);
    std::shared_ptr<CommunicatorImpl> made(new CommunicatorImpl(std::move(formed), rank, size, options, plans, tuning),
                                           End{});
    made->family_ = Family::of(made);
    Living::instance().add(made);
    return made;
  };
  const auto want = [&] {
    return "rank " + std::to_string(rank) + " has no memory to form group '" + options.name + "'";
  };
  return telling(store, id, rank, [&] { return naming_want(form, want); });
}

void CommunicatorImpl::join_family_of(const CommunicatorImpl& parent, const std::vector<int>& members) {
  family_ = parent.family_;  // first: whoever finds the group there goes on from it
  family_->add(shared_from_this(), parent, members);
}

// By another thread, which is awaited for a while: a handler of a signal may end the process in the midst of what its
// thread does, under any lock.
void CommunicatorImpl::say_left() noexcept {
  try {
    const auto said = std::make_shared<std::promise<void>>();
    start_thread("that tells other hosts of the process's end", [port = port_.get(), said] {
      port->say_left();
      said->set_value();
    }).detach();
    said->get_future().wait_for(kAtExit);
  } catch (const std::exception&) {  // then they see the connections end
  }
}

void Communicator::finish_all(std::chrono::milliseconds patience) noexcept {
  if (forked_child()) return;
  Deadline deadline = Deadline::after(patience);
  std::vector<std::shared_ptr<CommunicatorImpl>> groups;
  try {
    groups = Living::instance().all();
  } catch (const std::bad_alloc&) {  // then they end with the process
  }
  for (const auto& group : groups) group->finish(deadline);
}

CommunicatorImpl::CommunicatorImpl(FormedGroup formed, int rank, int size, const CommunicatorOptions& options,
                                   const PlanFiles& plans, const Tuning& tuning)
    : rank_(rank),
      size_(size),
      options_(options),
      logger_(parse_log_level(options.config.log_level), rank),
      refused_(ErrorKind::kExhausted, "group '" + options.name + "' on rank " + std::to_string(rank) +
                                          ": no memory for a call. Nothing has been sent: free some memory and call "
                                          "again"),
      starved_(ErrorKind::kExhausted, "group '" + options.name + "' on rank " + std::to_string(rank) +
                                          ": no memory to go on with a call, or to say why it failed. Start the job "
                                          "again, or go on without it by shrink()"),
      aborted_(ErrorKind::kAborted,
               "group '" + options.name + "' has been aborted or shut down on rank " + std::to_string(rank)),
      formed_(std::move(formed)),
      place_{rank, formed_.ranks, formed_.host.get()},
      algorithms_(
          collect(formed_, place_, plans, tuning),
          [measured = rules(formed_, size, tuning),
           forced = options.config.algorithm](std::shared_ptr<const AlgorithmCollection> collection) {
            return Selector(std::move(collection), measured, forced);
          },
          place_, formed_.arenas_mapped, plans.identity),
      timeout_ms_(options.timeout.count()),
      recorder_(options.config.flight_recorder_entries),
      queue_(*this) {
  port_ = std::make_unique<MessagePort>(rank, size, formed_.transport_of_peer, formed_.waker.get(), formed_.spin_ns);
  context_.rank = rank;
  context_.size = size;
  context_.host = formed_.ranks.one_host() ? formed_.host.get() : nullptr;
  context_.hosts = formed_.ranks.one_host() ? nullptr : &place_;
  context_.port = port_.get();
  if (context_.hosts != nullptr) {
    formed_.waker->look_elsewhere([port = port_.get()] {
      if (forked_child()) return kOkOutcome;  // by a handler of a signal, in the course of a wait: it may hold locks
      port->progress();                       // a link's end is found behind what has come before
      return port->lost();
    });
  }
  exit_hook_ = std::make_unique<ExitHook>([this] {
    if (formed_.host) formed_.host->leave();
    if (context_.hosts != nullptr) say_left();
  });
  logger_.debug("group '" + options_.name + "': " + std::to_string(size) + " ranks on " +
                std::to_string(formed_.ranks.hosts()) + " hosts");
}

CommunicatorImpl::~CommunicatorImpl() {
  exit_hook_.reset();
  if (!queue_.empty() || !outstanding_.empty()) abort_because("the communicator was destroyed with calls under way");
  if (formed_.host) formed_.host->leave();
  port_->fail({Status::kPeerLeft, rank_});
  queue_.stop();
  {
    const std::lock_guard lock(message_thread_mutex_);
    stopping_.store(true, std::memory_order_release);  // release: pairs with the acquire in message_loop()
    message_thread_wake_.notify_all();
  }
  formed_.waker->nudge();
  if (message_thread_.joinable()) message_thread_.join();
}

void CommunicatorImpl::shutdown() noexcept {
  if (forked_child()) return;
  queue_.drain(std::min(timeout(), std::chrono::milliseconds(60'000)));
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) return;
    try {
      publish(Error(ErrorKind::kAborted, "group '" + options_.name + "' has been shut down on this rank"));
    } catch (const std::bad_alloc&) {
      publish(aborted_);
    }
  }
  if (formed_.host) formed_.host->leave();
}

void CommunicatorImpl::finish(Deadline& patience) noexcept {
  if (queue_.empty()) return;
  const auto left = [&] {
    return std::chrono::milliseconds(std::max<std::int64_t>(0, patience.remaining_ns() / 1'000'000));
  };
  if (queue_.drain(left())) return;
  abort_because("the program ended with calls under way");
  queue_.drain(kEndsSoon);  // they find the abort at once
}

void CommunicatorImpl::abort_because(std::string_view reason) noexcept {
  if (forked_child()) return;
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      try {
        abort_reason_ = reason;
        publish(Error(ErrorKind::kAborted, "group '" + options_.name + "' was aborted on rank " +
                                               std::to_string(rank_) + (reason.empty() ? "" : ": " + abort_reason_)));
      } catch (const std::bad_alloc&) {
        publish(aborted_);
      }
    }
  }
  if (formed_.host) {
    formed_.host->report({Status::kAborted, rank_}, 0, reason);
    formed_.host->abort();
  }
  port_->fail({Status::kAborted, rank_}, reason);
}

void CommunicatorImpl::set_timeout(std::chrono::milliseconds timeout) {
  check_group_timeout(options_.name, timeout);
  timeout_ms_.store(timeout.count(), std::memory_order_relaxed);  // relaxed: see timeout()
}

std::optional<Error> CommunicatorImpl::failure() const {
  if (forked_child()) return parents_error();
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::optional<Error> CommunicatorImpl::lost() const {
  if (forked_child() || formed_.host == nullptr) return std::nullopt;
  // The others may have failed because of this rank. One that has ended its part itself asks nobody.
  if (std::optional<Error> own = failure()) return own->kind() != ErrorKind::kAborted ? own : std::nullopt;
  Outcome outcome = formed_.host->find_lost();
  if (outcome.ok()) return std::nullopt;
  outcome.peer = host_ranks()[static_cast<std::size_t>(outcome.peer)];
  FailureContext context;
  trace_to_cause(outcome, context);
  return Error(ErrorKind::kPeerLost, "group '" + options_.name + "' on rank " + std::to_string(rank_) + ": " +
                                         text_of_loss(outcome, context));
}

Metrics CommunicatorImpl::metrics() const {
  throw_if_forked();
  Metrics metrics = metrics_.snapshot();
  metrics.rescued_waits = port_->rescued_waits();
  if (formed_.host != nullptr) metrics.rescued_waits += formed_.host->rescued_waits();
  return metrics;
}

void CommunicatorImpl::reset_metrics() noexcept {
  if (!forked_child()) metrics_.reset();
}

std::string CommunicatorImpl::flight_record() const {
  throw_if_forked();
  return recorder_.dump(options_.name, rank_, size_);
}

}  // namespace tutti
