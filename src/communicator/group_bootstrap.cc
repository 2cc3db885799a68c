#include "communicator/group_bootstrap.h"

#include <sched.h>

#include <algorithm>
#include <array>
#include <deque>
#include <numeric>
#include <span>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/registry.h"
#include "bootstrap/exchange.h"
#include "communicator/communicator_impl.h"
#include "communicator/group_messages.h"

namespace tutti {
namespace {

constexpr std::chrono::milliseconds kLookEvery(500);

// Why a rank has failed.
struct Reason {
  std::uint8_t known_to_all = 0;
  std::uint8_t kind = 0;
  std::array<char, 4094> text{};  // ends with a zero
};

[[noreturn]] void throw_destroyed(const std::string& id, const std::string& group) {
  throw_error(ErrorKind::kAborted, "'" + id + "' cannot form: group '" + group +
                                       "' has been destroyed on this rank; keep a group until its calls have ended");
}

// The group for a slice of a wait.
class Hold {
 public:
  Hold(GroupBootstraps::Holders& holders, const std::weak_ptr<CommunicatorImpl>& group)
      : holders_(holders), group_(holders.enter(group)) {}
  ~Hold() {
    if (group_ != nullptr) holders_.leave(std::move(group_));
  }
  Hold(const Hold&) = delete;
  Hold& operator=(const Hold&) = delete;
  CommunicatorImpl* get() const noexcept { return group_.get(); }

 private:
  GroupBootstraps::Holders& holders_;
  std::shared_ptr<CommunicatorImpl> group_;
};

// Holds the group for a look or a slice of a wait, and not in between: then one that is dropped ends.
class GroupBootstrap final : public Bootstrap {
 public:
  GroupBootstrap(const std::shared_ptr<CommunicatorImpl>& group, std::vector<int> members, const std::string& id,
                 std::function<void()> look, std::shared_ptr<GroupBootstraps::Holders> holders)
      : Bootstrap(id, place_of(members, group->rank()), static_cast<int>(members.size())),
        group_(group),
        name_(group->name()),
        members_(std::move(members)),
        look_(std::move(look)),
        holders_(std::move(holders)) {}

  std::vector<std::string> all_gather(std::string_view topic, std::string_view blob,
                                      std::chrono::milliseconds timeout) override;
  void watch() override { look_at_peers(*group()); }
  void tell(const std::exception& error) noexcept override;

 private:
  // Messages to and from all others, in order of rank; those that are left when it ends are taken back. The end of the
  // group ends them.
  class Messages {
   public:
    explicit Messages(const GroupBootstrap& bootstrap) : bootstrap_(bootstrap) {}
    ~Messages() {
      const std::shared_ptr<CommunicatorImpl> group = bootstrap_.group_.lock();
      for (MessageOp& op : ops_) {
        if (group != nullptr) {
          if (!op.done()) group->port().cancel(op);
        } else {
          while (!op.done() && !forked_child()) sched_yield();  // another thread destroys it
        }
      }
    }
    Messages(const Messages&) = delete;
    Messages& operator=(const Messages&) = delete;
    MessageOp& post(bool send, int peer, std::uint64_t tag, void* data, std::size_t bytes) {
      const std::shared_ptr<CommunicatorImpl> group = bootstrap_.group();
      MessageOp& op = ops_.emplace_back();
      post_forming(group->port(), op, send, peer, tag, data, bytes);
      return op;
    }
    std::deque<MessageOp>& ops() noexcept { return ops_; }

   private:
    const GroupBootstrap& bootstrap_;
    std::deque<MessageOp> ops_;  // which do not move
  };

  static int place_of(const std::vector<int>& members, int rank) {
    return static_cast<int>(std::ranges::find(members, rank) - members.begin());
  }
  std::shared_ptr<CommunicatorImpl> group() const {
    if (auto group = group_.lock()) return group;
    throw_destroyed(id(), name_);
  }
  std::string what() const { return "'" + id() + "' of group '" + name_ + "'"; }
  std::uint64_t tag_of(std::string_view topic, std::string_view part) const { return forming_tag(id(), topic, part); }
  template <class Act>
  void each_peer(const Act& act) const {
    for (std::size_t i = 0; i < members_.size(); ++i) {
      if (static_cast<int>(i) != rank()) act(i, members_[i]);
    }
  }
  void look_at_peers(const CommunicatorImpl& group) const;
  void wait(Messages& messages, std::string_view topic, Deadline& deadline) const;
  [[noreturn]] void throw_failed(const CommunicatorImpl& group, Outcome outcome) const {
    throw_forming_failed(group, outcome, what(), has_formed());
  }
  [[noreturn]] void throw_late(Messages& messages, std::string_view topic, const Deadline& deadline) const;

  const std::weak_ptr<CommunicatorImpl> group_;
  const std::string name_;          // the group's
  const std::vector<int> members_;  // of the group
  const std::function<void()> look_;
  const std::shared_ptr<GroupBootstraps::Holders> holders_;
};

std::vector<std::string> GroupBootstrap::all_gather(std::string_view topic, std::string_view blob,
                                                    std::chrono::milliseconds timeout) {
  group()->throw_if_unusable();
  Deadline deadline = Deadline::after(timeout);
  deadline.expired();  // the clock starts here
  MessageHead own(blob);
  std::vector<MessageHead> heads(members_.size());
  {
    Messages messages(*this);
    const std::uint64_t tag = tag_of(topic, "head");
    each_peer([&](std::size_t, int peer) { messages.post(true, peer, tag, &own, sizeof own); });
    each_peer([&](std::size_t i, int peer) { messages.post(false, peer, tag, &heads[i], sizeof heads[i]); });
    wait(messages, topic, deadline);
  }
  std::vector<std::string> blobs(members_.size());
  each_peer([&](std::size_t i, int peer) { blobs[i] = text_of(heads[i], peer, what()); });
  std::string& mine = blobs[static_cast<std::size_t>(rank())] = blob;
  Messages messages(*this);
  const std::uint64_t tag = tag_of(topic, "rest");
  each_peer([&](std::size_t, int peer) {
    if (mine.size() > kFirstBytes) messages.post(true, peer, tag, mine.data() + kFirstBytes, mine.size() - kFirstBytes);
  });
  each_peer([&](std::size_t i, int peer) {
    if (blobs[i].size() > kFirstBytes)
      messages.post(false, peer, tag, blobs[i].data() + kFirstBytes, blobs[i].size() - kFirstBytes);
  });
  wait(messages, topic, deadline);
  return blobs;
}

void GroupBootstrap::wait(Messages& messages, std::string_view topic, Deadline& deadline) const {
  bool goes_on = false;
  for (MessageOp& op : messages.ops()) {
    for (; !op.done(); goes_on = true) {
      const Hold hold(*holders_, group_);
      CommunicatorImpl* const group = hold.get();
      if (group == nullptr) throw_destroyed(id(), name_);
      Deadline slice = Deadline::after(std::min<std::chrono::milliseconds>(
          kLookEvery, std::chrono::milliseconds(std::max<std::int64_t>(1, deadline.remaining_ns() / 1'000'000))));
      const Outcome outcome = group->port().wait(op, slice, goes_on);
      if (op.done()) break;
      if (outcome.status != Status::kTimeout) throw_failed(*group, outcome);
      look_at_peers(*group);
      if (deadline.expired()) throw_late(messages, topic, deadline);
    }
    if (!op.outcome.ok()) {
      const std::shared_ptr<CommunicatorImpl> group = this->group();
      look_at_peers(*group);  // which may know more
      throw_failed(*group, op.outcome);
    }
  }
}

// Whether one of them has told of a failure, or has died.
void GroupBootstrap::look_at_peers(const CommunicatorImpl& group) const {
  group.throw_if_unusable();
  if (look_ && !has_formed()) look_();  // what has formed is ended by others
  std::vector<Reason> reasons(members_.size());
  Messages messages(*this);
  const std::uint64_t tag = tag_of("failure", {});
  each_peer([&](std::size_t i, int peer) { messages.post(false, peer, tag, &reasons[i], sizeof reasons[i]); });
  std::size_t i = 0;
  each_peer([&](std::size_t place, int peer) {
    MessageOp& op = messages.ops()[i++];
    Deadline now = Deadline::after(std::chrono::milliseconds(0));
    group.port().wait(op, now, true);
    if (!op.done() && group.port().withdraw(op)) return;
    Deadline soon = Deadline::after(kLookEvery);  // for the rest of it
    if (const Outcome outcome = group.port().wait(op, soon); !outcome.ok()) throw_failed(group, outcome);
    Reason& reason = reasons[place];
    reason.text.back() = 0;
    const auto kind = static_cast<ErrorKind>(std::min<int>(reason.kind, static_cast<int>(ErrorKind::kInternal)));
    if (reason.known_to_all != 0) throw Told(kind, reason.text.data());
    throw Told(ErrorKind::kPeerLost, "rank " + std::to_string(peer) + " cannot join " + what() + ", which rank " +
                                         std::to_string(group.rank()) + " forms with it: " + reason.text.data());
  });
}

void GroupBootstrap::tell(const std::exception& error) noexcept {
  if (waits_in_fork() || dynamic_cast<const Told*>(&error) != nullptr) return;
  try {
    const std::shared_ptr<CommunicatorImpl> group = this->group();
    const auto* const known = dynamic_cast<const Error*>(&error);
    Reason reason;
    reason.known_to_all = dynamic_cast<const KnownToAll*>(&error) != nullptr;
    reason.kind = static_cast<std::uint8_t>(known != nullptr ? known->kind() : ErrorKind::kInternal);
    std::ranges::copy(std::string_view(error.what()).substr(0, reason.text.size() - 1), reason.text.begin());
    Messages messages(*this);
    const std::uint64_t tag = tag_of("failure", {});
    each_peer([&](std::size_t, int peer) { messages.post(true, peer, tag, &reason, sizeof reason); });
    Deadline soon = Deadline::after(kLookEvery);
    for (MessageOp& op : messages.ops()) group->port().wait(op, soon);
  } catch (const std::exception&) {
    // Then the others learn of it at their deadline.
  }
}

void GroupBootstrap::throw_late(Messages& messages, std::string_view topic, const Deadline& deadline) const {
  std::vector<int> absent;
  for (const MessageOp& op : messages.ops()) {
    if (!op.done() && std::ranges::find(absent, op.peer) == absent.end()) absent.push_back(op.peer);
  }
  std::ranges::sort(absent);
  throw_error(ErrorKind::kTimeout, "rank " + std::to_string(members_[static_cast<std::size_t>(rank())]) + " waited " +
                                       std::to_string(deadline.timeout().count()) + " ms for all " +
                                       std::to_string(size()) + " ranks of " + what() + " (" + std::string(topic) +
                                       "): " + name_ranks(absent) + " did not come; look at them, or allow more time");
}

}  // namespace

std::shared_ptr<CommunicatorImpl> GroupBootstraps::Holders::enter(const std::weak_ptr<CommunicatorImpl>& group) {
  std::shared_ptr<CommunicatorImpl> held = group.lock();  // goes, if it does, when the lock has gone
  const std::lock_guard lock(mutex_);
  // A holder is counted for a shorter time than it has its reference, so that this errs by waiting for another slice.
  if (held == nullptr || held.use_count() <= count_ + 1) return nullptr;
  ++count_;
  return held;
}

void GroupBootstraps::Holders::leave(std::shared_ptr<CommunicatorImpl> group) noexcept {
  {
    const std::lock_guard lock(mutex_);
    --count_;
  }
  group.reset();
}

GroupBootstraps::GroupBootstraps(Communicator& group)
    : group_(dynamic_cast<CommunicatorImpl&>(group).weak_from_this()), name_(group.name()) {}

BootstrapPtr GroupBootstraps::among(std::vector<int> members, const std::string& id, std::function<void()> look) const {
  const std::shared_ptr<CommunicatorImpl> group = group_.lock();
  if (group == nullptr) throw_destroyed(id, name_);
  return std::make_shared<GroupBootstrap>(group, std::move(members), id, std::move(look), holders_);
}

std::optional<Error> GroupBootstraps::lost() const {
  const std::shared_ptr<CommunicatorImpl> group = group_.lock();
  return group != nullptr ? group->lost() : std::nullopt;
}

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace tutti
