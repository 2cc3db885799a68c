// DeviceCommunicator over CudaCommunicators: one of all ranks, and two of each pair of ranks that has sent messages,
// one a direction, so that a message waits for its own ones only.
#include "tutti/device_communicator.h"

#include <atomic>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "communicator/device_entry.h"
#include "communicator/group_bootstrap.h"
#include "tutti/cuda_communicator.h"

namespace tutti {
namespace {

using CudaPtr = std::shared_ptr<CudaCommunicator>;

class DeviceGroup final : public DeviceCommunicator {
 public:
  DeviceGroup(std::string kind, Communicator& communicator)
      : kind_(std::move(kind)), bootstraps_(communicator), rank_(communicator.rank()), size_(communicator.size()) {
    options_.timeout = communicator.timeout();
    options_.name = communicator.name();
    options_.config = communicator.options().config;
  }

  DeviceStream own_stream(int device) override { return group(device)->own_stream(); }
  DeviceStream message_stream(int device, int peer, bool send) override {
    return lane(device, peer, send)->own_stream();
  }

  void run(const Call& call, const DevicePlace& place) override {
    if (made_group() == nullptr) refuse_capture(place, "the first collective of a group");
    const CudaPtr communicator = group(place.device);
    communicator->check(call);
    if (call.choice != nullptr) prepare(*communicator, call.choice->algorithm, place);
    finish(*communicator, place, [&](DeviceStream stream) { communicator->run(call, stream, place.timeout); });
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
    if (const CudaPtr made = made_group()) made->set_algorithms(std::move(set));
  }
  std::string explain(const Call& call) const override {
    const CudaPtr made = made_group();
    return made != nullptr ? made->explain(call) : "no call on a GPU has been made yet";
  }
  void synchronize(int device, DeviceStream stream) override {
    device_of_kind(kind_).synchronize_stream(device, stream);
  }

  std::optional<Error> failure() const override {
    std::optional<Error> first;
    for (const CudaPtr& one : all()) {
      if (!first) first = one->failure();
    }
    return first;
  }
  void abort(const std::string& reason) noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (!aborted_) aborted_ = reason;
    }
    for (const CudaPtr& one : all()) one->abort(reason);
  }
  Metrics metrics() const override {
    Metrics metrics;
    for (const CudaPtr& one : all()) add_counts(metrics, one->metrics());
    return metrics;
  }
  void reset_metrics() noexcept override {
    for (const CudaPtr& one : all()) one->reset_metrics();
  }
  std::vector<std::string> flight_records() const override {
    std::vector<std::string> records;
    for (const CudaPtr& one : all()) records.push_back(one->flight_record());
    return records;
  }

 private:
  // Of one pair of ranks.
  struct Pair {
    std::mutex making;  // held while both ranks make it; before mutex_
    CudaPtr up, down;   // from the lower rank to the higher one, and back; under mutex_
  };

  static std::uint32_t tag_of(std::uint64_t tag) {
    if (tag <= std::numeric_limits<std::uint32_t>::max()) return static_cast<std::uint32_t>(tag);
    throw_error(ErrorKind::kUnsupported, "tags of messages between GPUs have 32 bits, not " + std::to_string(tag));
  }

  template <class Enqueue>
  static void finish(CudaCommunicator& communicator, const DevicePlace& place, const Enqueue& enqueue) {
    if (place.stream) return enqueue(*place.stream);
    const DeviceStream stream = communicator.own_stream();
    enqueue(stream);
    communicator.synchronize(stream);
  }

  // `message` names ranks of the pair's communicator: 0 sends to 1.
  void transfer(const CudaMessage& message, int peer, const DevicePlace& place) {
    if (!has_lanes(peer)) refuse_capture(place, "the first message between two ranks");
    const CudaPtr communicator = lane(place.device, peer, message.send);
    finish(*communicator, place,
           [&](DeviceStream stream) { communicator->exchange({message}, stream, place.timeout); });
  }

  // What ranks make together allocates memory, which a capture forbids.
  void refuse_capture(const DevicePlace& place, const char* what) const {
    if (!place.stream || !device_of_kind(kind_).is_capturing(place.device, *place.stream)) return;
    throw_error(ErrorKind::kInvalidArgument,
                std::string(what) + " cannot be captured: make one like it, and wait for it, before the capture");
  }
  void prepare(CudaCommunicator& communicator, const UserAlgorithmPtr& algorithm, const DevicePlace& place) {
    const std::uint64_t identity = algorithm->identity();
    {
      const std::lock_guard lock(mutex_);
      if (prepared_.contains(identity)) return;
    }
    refuse_capture(place, "the first call by an algorithm");
    communicator.prepare(algorithm);
    const std::lock_guard lock(mutex_);
    prepared_.insert(identity);
  }
  bool has_lanes(int peer) const {
    const std::lock_guard lock(mutex_);
    const auto found = pairs_.find(peer);
    return found != pairs_.end() && found->second.down != nullptr;
  }

  // mutex_ is held.
  void throw_if_aborted() const {
    if (aborted_) throw_error(ErrorKind::kAborted, "group '" + options_.name + "' was aborted: " + *aborted_);
  }
  void check_device(const CudaCommunicator& made, int device) const {
    if (device < 0 || made.device() == device) return;
    throw_error(ErrorKind::kInvalidArgument, "this group's rank uses device " + std::to_string(made.device()) +
                                                 ", not " + std::to_string(device) +
                                                 ": a rank of a group has one device");
  }

  CudaPtr made_group() const {
    const std::lock_guard lock(mutex_);
    return group_;
  }

  CudaPtr group(int device) {
    if (const CudaPtr made = made_group()) return check_device(*made, device), made;
    const std::lock_guard one_at_a_time(making_);
    if (const CudaPtr made = made_group()) return check_device(*made, device), made;
    CudaOptions options = options_;
    options.device = device;
    AlgorithmSet algorithms;
    {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
      algorithms = algorithms_;
    }
    // A try that has failed has left messages behind.
    const std::string id = kind_ + (tries_ == 0 ? "" : ", try " + std::to_string(tries_ + 1));
    ++tries_;
    const CudaPtr made = make_communicator(kind_, bootstrap(all_ranks(size_), id), options);
    if (!algorithms.empty()) made->set_algorithms(std::move(algorithms));
    const std::lock_guard lock(mutex_);
    if (aborted_) made->abort(*aborted_);
    return group_ = made;
  }

  CudaPtr lane(int device, int peer, bool send) {
    if (peer < 0 || peer >= size_ || peer == rank_) {
      throw_error(ErrorKind::kInvalidArgument, std::string(send ? "send" : "recv") +
                                                   " of memory of a device: the peer is another rank of " +
                                                   std::to_string(size_) + ", not " + std::to_string(peer));
    }
    const int low = std::min(rank_, peer), high = std::max(rank_, peer);
    Pair* pair = nullptr;
    const auto made = [&]() -> CudaPtr {
      const std::lock_guard lock(mutex_);
      pair = &pairs_[peer];
      const CudaPtr& one = send == (rank_ == low) ? pair->up : pair->down;
      if (pair->down == nullptr) return throw_if_aborted(), nullptr;
      return check_device(*one, device), one;
    };
    if (CudaPtr one = made()) return one;
    const std::lock_guard one_at_a_time(pair->making);
    if (CudaPtr one = made()) return one;
    CudaPtr up = make_lane(device, low, high), down = make_lane(device, high, low);
    {
      const std::lock_guard lock(mutex_);
      if (aborted_) {
        up->abort(*aborted_);
        down->abort(*aborted_);
      }
      pair->up = std::move(up);
      pair->down = std::move(down);
    }
    return made();
  }

  CudaPtr make_lane(int device, int from, int to) const {
    const std::string direction = std::to_string(from) + ">" + std::to_string(to);
    CudaOptions options = options_;
    options.device = device;
    options.messages_only = true;
    options.name += ", messages " + direction;
    return make_communicator(kind_, bootstrap({from, to}, kind_ + ", messages " + direction), options);
  }
  // abort() ends what is being made.
  BootstrapPtr bootstrap(std::vector<int> members, const std::string& id) const {
    return bootstraps_.among(std::move(members), id, [this] {
      const std::lock_guard lock(mutex_);
      throw_if_aborted();
    });
  }

  std::vector<CudaPtr> all() const {
    const std::lock_guard lock(mutex_);
    std::vector<CudaPtr> made;
    if (group_ != nullptr) made.push_back(group_);
    for (const auto& [peer, pair] : pairs_) {
      for (const CudaPtr& one : {pair.up, pair.down}) {
        if (one != nullptr) made.push_back(one);
      }
    }
    return made;
  }

  const std::string kind_;
  const GroupBootstraps bootstraps_;
  const int rank_, size_;
  CudaOptions options_;

  int tries_ = 0;             // to make the group's communicator; under making_
  std::mutex making_;         // held while all ranks make the group's communicator, or give it algorithms
  mutable std::mutex mutex_;  // guards what follows; after making_ and a pair's; held for no wait: abort() takes it
  AlgorithmSet algorithms_;
  std::optional<std::string> aborted_;
  CudaPtr group_;
  std::set<std::uint64_t> prepared_;  // algorithms that calls have named, by identity
  std::map<int, Pair> pairs_;         // by peer; never removed
};

}  // namespace

std::shared_ptr<DeviceCommunicator> DeviceCommunicator::create(const std::string& kind, Communicator& communicator) {
  return std::make_shared<DeviceGroup>(kind, communicator);
}

}  // namespace tutti
