// DeviceCommunicator over StreamCommunicators: one of all ranks, and one of each ordered pair of ranks that has sent
// messages, so that a message waits for its own ones only.
//
// A pair is made by a thread of its own; the first message between two ranks begins those of both directions. Making
// one waits for the peer's first message, and nobody may wait for that who has only issued one: with every rank of a
// ring sending first, no rank would come to its receive. So messages issued meanwhile are queued (deferred_calls.h). If
// making fails, the messages of that direction fail for good, each with the same reason; the group itself is not
// poisoned.
#include "tutti/device_communicator.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <limits>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/interruption.h"
#include "base/no_memory.h"
#include "base/release.h"
#include "communicator/call_check.h"
#include "communicator/device_entry.h"
#include "communicator/flight_recorder.h"
#include "communicator/group_bootstrap.h"
#include "communicator/group_settings.h"
#include "communicator/message_pair.h"

namespace tutti {
namespace {

// Why nothing more is made. Outlives the group: a thread that makes something asks it.
class Ending {
 public:
  explicit Ending(std::string group) : group_(std::move(group)) {}

  // The first reason counts. It ends also where there is no memory to keep the reason.
  void end(std::string_view why, bool aborted) noexcept {
    const std::lock_guard lock(mutex_);
    try {
      if (aborted && !aborted_) reason_ = why;
      if (!ended_) why_ = "group '" + group_ + "' " + (aborted ? "was aborted: " : "") + std::string(why);
    } catch (const std::bad_alloc&) {
    }
    ended_ = true;
    aborted_ = aborted_ || aborted;
  }
  void throw_if_ended() const {
    const std::lock_guard lock(mutex_);
    if (ended_) throw_error(ErrorKind::kAborted, why_.empty() ? "group '" + group_ + "' has ended" : why_);
  }
  // What is made although it was aborted meanwhile is aborted at once.
  void apply_to(StreamCommunicator& made) const noexcept {
    const std::lock_guard lock(mutex_);
    if (aborted_) made.abort(reason_);
  }

 private:
  const std::string group_;
  mutable std::mutex mutex_;  // guards the members below; a leaf but for a communicator's own, which are leaves
  bool ended_ = false, aborted_ = false;
  std::string why_, reason_;  // of the end, and of the abort; empty: no memory was left for it
};

// A message of nothing: its turn has come, or will never come.
class Turn final : public DeferredMessage {
 public:
  struct Reached {
    std::mutex mutex;  // guards the members below; a leaf
    std::condition_variable changed;
    bool over = false;
    std::exception_ptr error;
  };
  explicit Turn(std::shared_ptr<Reached> reached) : reached_(std::move(reached)) {}
  void run(const StreamCommunicatorPtr&) noexcept override {}
  void fail(const std::exception_ptr& error) noexcept override {
    const std::lock_guard lock(reached_->mutex);
    reached_->error = error;
  }
  void wake() noexcept override {
    const std::lock_guard lock(reached_->mutex);
    reached_->over = true;
    reached_->changed.notify_all();
  }
  void announce() noexcept override {}

 private:
  const std::shared_ptr<Reached> reached_;
};

class DeviceGroup final : public DeviceCommunicator {
 public:
  DeviceGroup(std::string kind, Communicator& communicator, DeviceOptions options)
      : kind_(std::move(kind)),
        bootstraps_(communicator),
        rank_(communicator.rank()),
        size_(communicator.size()),
        beside_(communicator.host_ranks()),
        options_(std::move(options)),
        ending_(std::make_shared<Ending>(communicator.name())) {
    options_.timeout = communicator.timeout();
    options_.name = communicator.name();
    if (!options_.config) options_.config = communicator.options().config;
  }
  // All pairs give up before the end of the first waits for its thread. A forked child has none of the threads, and
  // leaves everything as it is.
  ~DeviceGroup() override {
    if (left_by_child(pairs_)) return;
    ending_->end("was destroyed", false);
  }

  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  const std::string& name() const noexcept override { return options_.name; }
  const std::string& kind() const noexcept override { return kind_; }

  const StreamCommunicatorPtr& group(int device) override {
    throw_if_closed();
    // acquire: pairs with the release below.
    if (made_.load(std::memory_order_acquire)) return checked(group_, device);
    const std::lock_guard one_at_a_time(making_);
    if (made_.load(std::memory_order_relaxed)) return checked(group_, device);  // relaxed: written under making_
    AlgorithmSet algorithms;
    DeviceOptions options = options_for(device, {});
    {
      const std::lock_guard lock(mutex_);
      algorithms = algorithms_;
    }
    options.given = given_text(algorithms);
    // A try that has failed has left messages behind.
    const std::string id = kind_ + (tries_ == 0 ? "" : ", try " + std::to_string(tries_ + 1));
    ++tries_;
    StreamCommunicatorPtr made = make(options, all_ranks(size_), id);
    if (!algorithms.empty()) made->set_algorithms(std::move(algorithms));
    {
      const std::lock_guard lock(mutex_);
      group_ = std::move(made);
    }
    // release: publishes group_ to those who take no lock; it never changes again.
    made_.store(true, std::memory_order_release);
    catch_up(*group_);
    return group_;
  }
  StreamCommunicatorPtr made_group() const noexcept override {
    // acquire: pairs with the release in group().
    return made_.load(std::memory_order_acquire) ? group_ : nullptr;
  }

  StreamCommunicatorPtr pair(int device, int peer, bool send, std::optional<DeviceStream> stream) override {
    throw_if_closed();
    {
      const std::lock_guard lock(mutex_);
      MessagePair* const found = find(device, peer, send);
      if (StreamCommunicatorPtr made = found != nullptr ? found->ready() : nullptr) return made;
    }
    // What is captured cannot be queued for a thread that would enqueue it later.
    if (stream && device_of_kind(kind_).is_capturing(device, *stream)) return awaited(device, peer, send);
    return begun(device, peer, send).ready();
  }
  bool defer(int peer, bool send, std::unique_ptr<DeferredMessage>& message) override {
    MessagePair* found = nullptr;
    {
      const std::lock_guard lock(mutex_);
      found = &pairs_.at({peer, send});  // never removed
    }
    return naming_want([&] { return found->queue(message); },
                       [&] {
                         return "group '" + options_.name + "' on rank " + std::to_string(rank_) +
                                ": no memory to queue a message " + (send ? "to" : "from") + " rank " +
                                std::to_string(peer) + ". Nothing has been sent: free some memory and call again";
                       });
  }
  bool in_use() const override {
    const std::lock_guard lock(mutex_);
    return group_ != nullptr || !pairs_.empty();
  }

  DeviceStream own_stream(int device) override { return group(device)->own_stream(); }
  DeviceStream message_stream(int device, int peer, bool send) override {
    return await_pair({device, {}, {}}, peer, send)->own_stream();
  }

  void run(const Call& call, const DevicePlace& place) override {
    StreamCommunicator& communicator = *group(place.device);
    communicator.check(call);
    if (call.choice != nullptr) prepare(communicator, call.choice->algorithm, place);
    finish(communicator, place, [&](DeviceStream stream) { communicator.run(call, stream, place.timeout); });
  }
  void send(const void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) override {
    transfer({true, const_cast<void*>(data), bytes, 1, tag_of(tag)}, peer, place);
  }
  void recv(void* data, std::size_t bytes, int peer, std::uint64_t tag, const DevicePlace& place) override {
    transfer({false, data, bytes, 0, tag_of(tag)}, peer, place);
  }

  void set_algorithms(AlgorithmSet set) override {
    const std::lock_guard one_at_a_time(making_);
    AlgorithmSet before = set;
    {
      const std::lock_guard lock(mutex_);
      std::swap(algorithms_, before);
    }
    before = {};  // not under the mutex: a program's function may take locks of its own as it goes
    if (const StreamCommunicatorPtr made = made_group()) made->set_algorithms(std::move(set));
  }
  std::string explain(const Call& call) const override {
    const StreamCommunicatorPtr made = made_group();
    return made != nullptr ? made->explain(call) : "no call on a GPU has been made yet";
  }
  void synchronize(int device, DeviceStream stream) override {
    device_of_kind(kind_).synchronize_stream(device, stream);
  }

  std::optional<Error> failure() const override {
    std::optional<Error> failure;
    for_each([&](const StreamCommunicator& one) {
      if (!failure) failure = one.failure();
    });
    return failure;
  }
  void abort(const std::string& reason) noexcept override {
    ending_->end(reason, true);
    for_each([&](StreamCommunicator& one) { one.abort(reason); });
  }
  void shutdown() noexcept override {
    ending_->end("has been shut down on this rank", false);
    closed_.store(true, std::memory_order_relaxed);  // relaxed: a flag; why is asked under a lock
  }
  std::chrono::milliseconds timeout() const noexcept override {
    const std::lock_guard lock(mutex_);
    return options_.timeout;
  }
  void set_timeout(std::chrono::milliseconds timeout) override {
    check_group_timeout(options_.name, timeout);
    if (forked_child()) return;  // a thread of the parent's may have had the lock, and the child makes no call
    // Throughout under the lock: what is made meanwhile, and other threads' calls, get the same order.
    const std::lock_guard lock(mutex_);
    if (group_ != nullptr) group_->set_timeout(timeout);
    for (const auto& [key, pair] : pairs_) {
      if (const StreamCommunicatorPtr one = pair.made()) one->set_timeout(timeout);
    }
    options_.timeout = timeout;
  }
  std::uint64_t sequence() const noexcept override {
    const StreamCommunicatorPtr made = made_group();
    return made != nullptr ? made->sequence() : 0;
  }
  Metrics metrics() const override {
    Metrics metrics;
    for_each([&](const StreamCommunicator& one) { add_counts(metrics, one.metrics()); });
    return metrics;
  }
  void reset_metrics() noexcept override {
    for_each([](StreamCommunicator& one) { one.reset_metrics(); });
  }
  std::string flight_record() const override {
    std::vector<std::string> records;
    for_each([&](const StreamCommunicator& one) { records.push_back(one.flight_record()); });
    return merge_records(records, "/" + kind_);
  }

 private:
  using Pairs = std::map<std::pair<int, bool>, MessagePair>;  // by peer, and whether this rank sends

  static std::uint32_t tag_of(std::uint64_t tag) {
    if (tag <= std::numeric_limits<std::uint32_t>::max()) return static_cast<std::uint32_t>(tag);
    throw_error(ErrorKind::kUnsupported, "tags of messages between GPUs have 32 bits, not " + std::to_string(tag));
  }

  template <class Enqueue>
  static void finish(StreamCommunicator& communicator, const DevicePlace& place, const Enqueue& enqueue) {
    if (place.stream) return enqueue(*place.stream);
    const DeviceStream stream = communicator.own_stream();
    enqueue(stream);
    communicator.synchronize(stream);
  }

  // `message` names ranks of the pair's communicator: 0 sends to 1.
  void transfer(const DeviceMessage& message, int peer, const DevicePlace& place) {
    const StreamCommunicatorPtr communicator = await_pair(place, peer, message.send);
    finish(*communicator, place,
           [&](DeviceStream stream) { communicator->exchange({message}, stream, place.timeout); });
  }

  void prepare(StreamCommunicator& communicator, const UserAlgorithmPtr& algorithm, const DevicePlace& place) {
    const std::uint64_t identity = algorithm->identity();
    {
      const std::lock_guard lock(mutex_);
      if (prepared_.contains(identity)) return;
    }
    if (place.stream && device_of_kind(kind_).is_capturing(place.device, *place.stream)) {
      throw_error(ErrorKind::kInvalidArgument,
                  "the first call by an algorithm cannot be captured: make one like it, and wait for it, before the "
                  "capture");
    }
    communicator.prepare(algorithm);
    const std::lock_guard lock(mutex_);
    prepared_.insert(identity);
  }

  const StreamCommunicatorPtr& checked(const StreamCommunicatorPtr& made, int device) const {
    check_device(made->device(), device);
    return made;
  }
  void check_device(int used, int device) const {
    if (device < 0 || used < 0 || used == device) return;
    throw_error(ErrorKind::kInvalidArgument, "this group's rank uses " + kind_ + ":" + std::to_string(used) + ", not " +
                                                 kind_ + ":" + std::to_string(device) +
                                                 ": a rank of a group has one device");
  }

  DeviceOptions options_for(int device, const std::string& what) const {
    const std::lock_guard lock(mutex_);
    DeviceOptions options = options_;
    options.device = device;
    options.name += what;
    return options;
  }
  // Throws Error(kAborted) once the group has ended, also meanwhile.
  StreamCommunicatorPtr make(DeviceOptions options, std::vector<int> members, const std::string& id) const {
    ending_->throw_if_ended();
    options.one_host =
        std::ranges::all_of(members, [&](int member) { return std::ranges::binary_search(beside_, member); });
    const BootstrapPtr bootstrap =
        bootstraps_.among(std::move(members), id, [ending = ending_] { ending->throw_if_ended(); });
    StreamCommunicatorPtr made = make_communicator(kind_, bootstrap, options);
    made->follow([bootstraps = bootstraps_] { return bootstraps.lost(); });
    return made;
  }
  // With what was set while it was made, and nobody found it. It can be found by now: see set_timeout().
  void catch_up(StreamCommunicator& made) const {
    {
      const std::lock_guard lock(mutex_);
      made.set_timeout(options_.timeout);
    }
    ending_->apply_to(made);
  }
  void throw_if_closed() const {
    // relaxed: see shutdown()
    if (closed_.load(std::memory_order_relaxed)) ending_->throw_if_ended();
  }

  // mutex_ is held.
  MessagePair* find(int device, int peer, bool send) {
    const auto found = pairs_.find({peer, send});
    if (found == pairs_.end()) return nullptr;
    check_device(found->second.device(), device);
    return &found->second;
  }
  // That is there now: its thread makes it, or has made it. The first message between two ranks begins both directions,
  // whichever it has: so ranks that wait for the making of one find each other, each behind another message.
  MessagePair& begun(int device, int peer, bool send) {
    if (peer < 0 || peer >= size_ || peer == rank_) {
      throw_error(ErrorKind::kInvalidArgument, std::string(send ? "send" : "recv") +
                                                   " of memory of a device: the peer is another rank of " +
                                                   std::to_string(size_) + ", not " + std::to_string(peer));
    }
    ending_->throw_if_ended();
    const auto mine = maker(device, peer, send), other = maker(device, peer, !send);
    const std::lock_guard lock(mutex_);
    if (MessagePair* const found = find(device, peer, send)) return *found;
    const auto made = [this](StreamCommunicator& pair) { catch_up(pair); };
    pairs_.try_emplace({peer, !send}, device, other, made);
    return pairs_.try_emplace({peer, send}, device, mine, made).first->second;
  }
  // What makes a pair, on a thread of its own.
  std::function<StreamCommunicatorPtr()> maker(int device, int peer, bool send) const {
    const int from = send ? rank_ : peer, to = send ? peer : rank_;
    const std::string direction = ", messages " + std::to_string(from) + ">" + std::to_string(to);
    DeviceOptions options = options_for(device, direction);
    options.messages_only = true;
    return [this, device, from, to, id = kind_ + direction, options]() -> StreamCommunicatorPtr {
      try {
        device_of_kind(kind_).begin_thread(device);
        return make(options, {from, to}, id);
      } catch (const Error& error) {
        throw Error(error.kind(), "the first message from rank " + std::to_string(from) + " to rank " +
                                      std::to_string(to) + " of group '" + options_.name +
                                      "' was not sent: " + error.what());
      }
    };
  }

  StreamCommunicatorPtr await_pair(const DevicePlace& place, int peer, bool send) {
    if (StreamCommunicatorPtr made = pair(place.device, peer, send, {})) return made;
    return awaited(place.device, peer, send);
  }
  // Begins it, if it is not, and waits.
  StreamCommunicatorPtr awaited(int device, int peer, bool send) {
    MessagePair& mine = begun(device, peer, send);
    for (;;) {
      if (StreamCommunicatorPtr made = mine.ready()) return made;
      const auto reached = std::make_shared<Turn::Reached>();
      std::unique_ptr<DeferredMessage> turn = std::make_unique<Turn>(reached);
      if (mine.queue(turn)) await(*reached);
    }
  }
  static void await(Turn::Reached& reached) {
    std::unique_lock lock(reached.mutex);
    while (!reached.changed.wait_for(lock, std::chrono::milliseconds(kAskEveryMs), [&] { return reached.over; })) {
      lock.unlock();
      throw_if_interrupted("the first message between two ranks");
      lock.lock();
    }
    if (reached.error != nullptr) std::rethrow_exception(reached.error);
  }

  // Each that is there, the group's first: act(communicator), without the lock and, of itself, without memory.
  template <class Act>
  void for_each(const Act& act) const {
    if (const StreamCommunicatorPtr group = made_group()) act(*group);
    Pairs::const_iterator next;
    {
      const std::lock_guard lock(mutex_);
      next = pairs_.begin();
    }
    for (;;) {
      StreamCommunicatorPtr one;
      {
        const std::lock_guard lock(mutex_);
        if (next == pairs_.end()) return;
        one = next->second.made();
        ++next;  // pairs are never removed
      }
      if (one != nullptr) act(*one);
    }
  }

  const std::string kind_;
  const GroupBootstraps bootstraps_;
  const int rank_, size_;
  const std::vector<int> beside_;  // the ranks of this one's host, in order
  DeviceOptions options_;          // its timeout under mutex_
  const std::shared_ptr<Ending> ending_;

  int tries_ = 0;      // to make the group's communicator; under making_
  std::mutex making_;  // held while all ranks make the group's communicator, or give it algorithms
  // Guards what follows; after making_, before those of communicators; held for no wait: abort() takes it.
  mutable std::mutex mutex_;
  AlgorithmSet algorithms_;
  StreamCommunicatorPtr group_;
  std::atomic<bool> made_{false};     // group_ is there
  std::atomic<bool> closed_{false};   // by shutdown()
  std::set<std::uint64_t> prepared_;  // algorithms that calls have named, by identity
  Pairs pairs_;                       // never removed; their threads use all of the above
};

}  // namespace

std::shared_ptr<DeviceCommunicator> DeviceCommunicator::create(const std::string& kind, Communicator& communicator,
                                                               DeviceOptions options) {
  return std::make_shared<DeviceGroup>(kind, communicator, std::move(options));
}

Metrics merged_metrics(const Communicator& host, const DeviceCommunicator& devices) {
  Metrics all = host.metrics();
  const Metrics on_devices = devices.metrics();
  all.rows.insert(all.rows.end(), on_devices.rows.begin(), on_devices.rows.end());
  all.errors += on_devices.errors;
  all.device_calls = on_devices.device_calls;
  return all;
}

std::string merged_record(const Communicator& host, const DeviceCommunicator& devices, const std::string& kind) {
  if (kind == "cpu") return host.flight_record();
  if (kind == devices.kind()) return devices.flight_record();
  if (kind.empty()) return merge_records({host.flight_record(), devices.flight_record()});
  throw_error(ErrorKind::kInvalidArgument, "device must be 'cpu' or '" + devices.kind() + "', not '" + kind + "'");
}

}  // namespace tutti
