#include "transport/sim/sim_network.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <limits>
#include <mutex>
#include <optional>
#include <random>
#include <vector>

#include "tutti/error.h"

namespace tutti {

struct SimNetwork::State {
  // Bytes that become readable together.
  struct Parcel {
    std::int64_t at_ns;
    std::vector<std::byte> bytes;
    std::size_t read = 0;
  };

  // One direction of a link.
  struct Pipe {
    std::deque<Parcel> parcels;
    std::size_t under_way = 0;
    std::optional<LastWords> words{};  // of its writer, behind all parcels
  };

  // Both directions between two ranks share their fate.
  struct Wire {
    bool cut = false;
    std::uint64_t operations = 0;
    std::uint64_t cut_at = std::numeric_limits<std::uint64_t>::max();
  };

  class SimLink final : public Link {
   public:
    SimLink(State& state, int from, int to) : state_(state), from_(from), to_(to) {}
    std::size_t write_some(ConstBytes head, ConstBytes body) noexcept override {
      return state_.write(from_, to_, head, body);
    }
    std::size_t read_some(MutableBytes into) noexcept override { return state_.read(to_, from_, into); }
    Status status() const noexcept override { return state_.status(from_, to_); }
    LastWords last_words() const noexcept override { return state_.last_words(to_, from_); }

   private:
    State& state_;
    int from_;
    int to_;
  };

  class SimTransport final : public Transport {
   public:
    SimTransport(State& state, int rank) : state_(state), rank_(rank) {
      for (int peer = 0; peer < state.ranks; ++peer) links_.emplace_back(state, rank, peer);
    }
    std::string_view name() const noexcept override { return "sim"; }
    Link* link(int peer) noexcept override {
      if (peer < 0 || peer >= static_cast<int>(links_.size()) || peer == rank_) return nullptr;
      return &links_[static_cast<std::size_t>(peer)];
    }
    int accept_new(std::span<int> peers) noexcept override {
      int n = 0;
      for (; told_ < static_cast<int>(links_.size()) && n < static_cast<int>(peers.size()); ++told_)
        if (told_ != rank_) peers[static_cast<std::size_t>(n++)] = told_;
      return n;
    }
    void close(Status /*why*/, const LastWords& words) noexcept override { state_.close(rank_, words); }

   private:
    State& state_;
    int rank_;
    int told_ = 0;
    std::deque<SimLink> links_;
  };

  State(int n, const SimOptions& o)
      : options(o),
        ranks(n),
        random(o.seed),
        pipes(static_cast<std::size_t>(n) * static_cast<std::size_t>(n)),
        wires(pipes.size()),
        killed(static_cast<std::size_t>(n)),
        operations(static_cast<std::size_t>(n)),
        kill_at(static_cast<std::size_t>(n), std::numeric_limits<std::uint64_t>::max()) {
    for (int rank = 0; rank < n; ++rank) transports.emplace_back(*this, rank);
  }

  std::size_t index(int from, int to) const noexcept {
    return static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks) + static_cast<std::size_t>(to);
  }
  Pipe& pipe(int from, int to) noexcept { return pipes[index(from, to)]; }
  Wire& wire(int a, int b) noexcept { return wires[index(std::min(a, b), std::max(a, b))]; }
  bool is_killed(int rank) const noexcept { return killed[static_cast<std::size_t>(rank)] != 0; }
  std::size_t draw(std::size_t least, std::size_t most) noexcept {
    return least + static_cast<std::size_t>(random() % (most - least + 1));
  }

  // Most reads and writes go through whole, some stop after a few bytes, some in the middle.
  std::size_t part_of(std::size_t bytes) noexcept {
    switch (draw(0, 5)) {
      case 0:
        return draw(1, std::min<std::size_t>(bytes, 16));
      case 1:
        return draw(1, bytes);
      default:
        return bytes;
    }
  }

  // What is not delivered yet is lost with the wire.
  void cut(int a, int b) noexcept {
    wire(a, b).cut = true;
    for (Pipe* p : {&pipe(a, b), &pipe(b, a)})
      while (!p->parcels.empty() && p->parcels.back().at_ns > now) {
        p->under_way -= p->parcels.back().bytes.size();
        p->parcels.pop_back();
      }
  }
  void kill(int rank) noexcept {
    if (is_killed(rank)) return;
    killed[static_cast<std::size_t>(rank)] = 1;
    for (int peer = 0; peer < ranks; ++peer)
      if (peer != rank) cut(rank, peer);
  }

  // Counts an operation of `rank` towards `peer`; false if it does not take place.
  bool operate(int rank, int peer) noexcept {
    Wire& w = wire(rank, peer);
    if (++operations[static_cast<std::size_t>(rank)] >= kill_at[static_cast<std::size_t>(rank)]) kill(rank);
    if (++w.operations >= w.cut_at && !w.cut) cut(rank, peer);
    return !w.cut;
  }

  std::size_t write(int from, int to, ConstBytes head, ConstBytes body) noexcept {
    const std::lock_guard lock(mutex);
    Pipe& p = pipe(from, to);
    const std::size_t fit = std::min(head.size() + body.size(), options.capacity - p.under_way);
    if (fit == 0 || wire(from, to).cut || p.words || !operate(from, to)) return 0;
    const std::size_t n = part_of(fit);
    Parcel parcel{now + static_cast<std::int64_t>(draw(0, static_cast<std::size_t>(options.max_delay_ns))), {}};
    if (!p.parcels.empty()) parcel.at_ns = std::max(parcel.at_ns, p.parcels.back().at_ns);
    const std::size_t of_head = std::min(n, head.size());
    parcel.bytes.assign(head.begin(), head.begin() + static_cast<std::ptrdiff_t>(of_head));
    parcel.bytes.insert(parcel.bytes.end(), body.begin(), body.begin() + static_cast<std::ptrdiff_t>(n - of_head));
    p.parcels.push_back(std::move(parcel));
    p.under_way += n;
    return n;
  }

  std::size_t read(int from, int to, MutableBytes into) noexcept {
    const std::lock_guard lock(mutex);
    Pipe& p = pipe(from, to);
    if (into.empty() || is_killed(to) || p.parcels.empty() || p.parcels.front().at_ns > now) return 0;
    if (!wire(from, to).cut) operate(to, from);
    if (is_killed(to) || p.parcels.empty()) return 0;
    Parcel& parcel = p.parcels.front();
    const std::size_t n = part_of(std::min(into.size(), parcel.bytes.size() - parcel.read));
    std::memcpy(into.data(), parcel.bytes.data() + parcel.read, n);
    parcel.read += n;
    p.under_way -= n;
    if (parcel.read == parcel.bytes.size()) p.parcels.pop_front();
    return n;
  }

  Status status(int from, int to) noexcept {
    const std::lock_guard lock(mutex);
    const Pipe& in = pipe(to, from);
    return wire(from, to).cut || (in.words && in.parcels.empty()) ? Status::kPeerLost : Status::kOk;
  }

  void close(int rank, const LastWords& words) noexcept {
    const std::lock_guard lock(mutex);
    for (int peer = 0; peer < ranks; ++peer) {
      if (!wire(rank, peer).cut) pipe(rank, peer).words = words;
    }
  }

  LastWords last_words(int from, int to) noexcept {
    const std::lock_guard lock(mutex);
    const Pipe& p = pipe(from, to);
    return p.words && p.parcels.empty() ? *p.words : LastWords{};
  }

  bool advance() noexcept {
    const std::lock_guard lock(mutex);
    std::int64_t next = std::numeric_limits<std::int64_t>::max();
    for (const Pipe& p : pipes)
      for (const Parcel& parcel : p.parcels)
        if (parcel.at_ns > now) {
          next = std::min(next, parcel.at_ns);
          break;
        }
    if (next == std::numeric_limits<std::int64_t>::max()) return false;
    now = next;
    return true;
  }

  const SimOptions options;
  const int ranks;
  mutable std::mutex mutex;  // guards all below; a leaf
  std::mt19937_64 random;
  std::int64_t now = 0;
  std::vector<Pipe> pipes;
  std::vector<Wire> wires;
  std::vector<char> killed;
  std::vector<std::uint64_t> operations;
  std::vector<std::uint64_t> kill_at;
  std::deque<SimTransport> transports;
};

SimNetwork::SimNetwork(int ranks, const SimOptions& options) {
  if (options.capacity < kLinkSlack)
    throw_error(ErrorKind::kInvalidArgument, "a link's capacity is at least 4096 bytes");
  state_ = std::make_unique<State>(ranks, options);
}

SimNetwork::~SimNetwork() = default;

Transport& SimNetwork::transport(int rank) noexcept { return state_->transports[static_cast<std::size_t>(rank)]; }

void SimNetwork::kill_at(int rank, std::uint64_t operation) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->kill_at[static_cast<std::size_t>(rank)] = operation;
}

void SimNetwork::cut_at(int a, int b, std::uint64_t operation) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->wire(a, b).cut_at = operation;
}

void SimNetwork::kill(int rank) noexcept {
  const std::lock_guard lock(state_->mutex);
  state_->kill(rank);
}

bool SimNetwork::alive(int rank) const noexcept {
  const std::lock_guard lock(state_->mutex);
  return !state_->is_killed(rank);
}

std::int64_t SimNetwork::time_ns() const noexcept {
  const std::lock_guard lock(state_->mutex);
  return state_->now;
}

bool SimNetwork::advance() noexcept { return state_->advance(); }

}  // namespace tutti
