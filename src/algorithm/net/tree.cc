// Algorithms along trees of ranks.
//
// With n ranks, a message of B bytes, latency a a message, segments of S bytes:
//   binomial broadcast, reduce   log2(n) a; the root sends or receives up to log2(n) B
//   binomial all_reduce          2 log2(n) a: reduce to rank 0, broadcast from it
//   chain broadcast, reduce      (n - 1) a, but every rank sends and receives each byte once: B + (n - 2) S in time;
//                                between hosts too
// The order of a reduction follows from the ranks and their hosts alone. All ranks get the root's bits. Sources:
// Thakur, Rabenseifner and Gropp, IJHPCA 2005; van de Geijn's chains ("Collective communication: theory, practice, and
// experience", 2007). All of them greet (net_call.h), because a leaf hears of one rank only.
#include "algorithm/net/tree.h"

#include "algorithm/net/families.h"

namespace tutti {
namespace {

constexpr std::size_t kTreeWindow = 4;

// Beyond this the longer way of the chain, or of the ring, costs less than the bytes that a tree repeats.
constexpr std::size_t kMostTreeBytes = 256 * 1024;
constexpr std::size_t kMostTreeAllReduceBytes = 32 * 1024;

// Ops of a pass: kTreeWindow for the parent, then as many a child.
std::size_t parent_op(std::size_t first, std::size_t k) noexcept { return first + k % kTreeWindow; }
std::size_t child_op(std::size_t first, std::size_t child, std::size_t k) noexcept {
  return first + (child + 1) * kTreeWindow + k % kTreeWindow;
}

}  // namespace

TreePlace binomial_place(int rank, int root, int ranks) noexcept {
  TreePlace place;
  const int v = (rank - root + ranks) % ranks;
  for (int bit = 1; bit < ranks; bit *= 2) {
    if ((v & bit) != 0) {
      place.parent = (v - bit + root) % ranks;
      break;
    }
    if (v + bit < ranks) place.add_child((v + bit + root) % ranks);
  }
  return place;
}

namespace {

// Whom a chain visits `steps` (1 or -1) after `rank`, as if it went around: first the host of the root from the root
// on, then each of the others from its lowest rank on.
int along_chain(const RankMap& hosts, int root, int rank, int steps) noexcept {
  const auto first_on = [&](int host) { return host == hosts.host_of(root) ? hosts.place_of(root) : 0; };
  const auto at = [&](int host, int position) {
    const std::vector<int>& there = hosts.on(host);
    const int count = static_cast<int>(there.size());
    return there[static_cast<std::size_t>((first_on(host) + position + count) % count)];
  };
  const int host = hosts.host_of(rank), count = static_cast<int>(hosts.on(host).size());
  const int position = (hosts.place_of(rank) - first_on(host) + count) % count;
  if (position + steps >= 0 && position + steps < count) return at(host, position + steps);
  const int next = (host + hosts.hosts() + steps) % hosts.hosts();
  return at(next, steps > 0 ? 0 : -1);
}

}  // namespace

TreePlace chain_place(int rank, int root, int ranks, const RankMap* hosts) noexcept {
  const auto along = [&](int steps) {
    return hosts != nullptr ? along_chain(*hosts, root, rank, steps) : (rank + ranks + steps) % ranks;
  };
  TreePlace place;
  if (rank != root) place.parent = along(-1);
  if (along(1) != root) place.add_child(along(1));
  return place;
}

std::size_t tree_ops(const TreePlace& place) noexcept { return (place.children() + 1) * kTreeWindow; }

Outcome tree_broadcast(NetCall& net, std::size_t first_op, const TreePlace& place, std::byte* data,
                       std::size_t bytes) noexcept {
  const Segments segments(bytes);
  const auto receive = [&](std::size_t k) {
    if (place.parent < 0 || k >= segments.count()) return;
    net.recv(parent_op(first_op, k), place.parent, data + segments.begin(k), segments.size(k));
  };
  for (std::size_t k = 0; k < kTreeWindow; ++k) receive(k);
  for (std::size_t k = 0; k < segments.count(); ++k) {
    if (Outcome outcome = net.wait(parent_op(first_op, k)); !outcome.ok()) return outcome;
    // The child with the largest subtree first: it has the longest way to go.
    for (std::size_t c = place.children(); c-- > 0;) {
      const std::size_t op = child_op(first_op, c, k);
      if (Outcome outcome = net.wait(op); !outcome.ok()) return outcome;
      net.send(op, place.child(c), data + segments.begin(k), segments.size(k));
    }
    receive(k + kTreeWindow);
  }
  return net.finish();
}

namespace {

std::size_t window_of(const Segments& segments) noexcept { return std::min(kTreeWindow, segments.count()); }

// Slots of the children, then of what goes to the parent.
std::size_t slots_for(const TreePlace& place, const Segments& segments) noexcept {
  return (place.children() + 1) * window_of(segments) * segments.size(0);
}

}  // namespace

std::size_t tree_reduce_memory(const TreePlace& place, const Call& call) noexcept {
  return CallMemory::bytes_of<std::byte>(slots_for(place, Segments(call.input.size(0))));
}

Outcome tree_reduce(NetCall& net, std::size_t first_op, const TreePlace& place, const Call& call, std::byte* result) {
  const Segments segments(call.input.size(0));
  const std::byte* input = call.input.data(0);
  const std::size_t children = place.children();
  const std::size_t window = window_of(segments);
  const std::size_t slot_bytes = segments.size(0);
  std::byte* slots = net.memory().take<std::byte>(slots_for(place, segments)).data();
  const auto slot = [&](std::size_t c, std::size_t k) { return slots + (c * window + k % window) * slot_bytes; };
  const auto receive = [&](std::size_t k) {
    for (std::size_t c = 0; c < children && k < segments.count(); ++c) {
      net.recv(child_op(first_op, c, k), place.child(c), slot(c, k), segments.size(k));
    }
  };
  std::array<const void*, TreePlace::kMostChildren + 1> sources;
  net.greet();
  for (std::size_t k = 0; k < window; ++k) receive(k);
  for (std::size_t k = 0; k < segments.count(); ++k) {
    if (Outcome outcome = net.wait(parent_op(first_op, k)); !outcome.ok()) return outcome;
    sources[0] = input + segments.begin(k);
    for (std::size_t c = 0; c < children; ++c) {
      if (Outcome outcome = net.wait(child_op(first_op, c, k)); !outcome.ok()) return outcome;
      sources[c + 1] = slot(c, k);
    }
    void* dst = place.parent < 0 ? result + segments.begin(k) : slot(children, k);
    cpu::reduce(&dst, 1, sources.data(), static_cast<int>(children + 1), segments.size(k) / size_of(call.dtype),
                call.dtype, call.op, place.parent < 0 ? divisor_of(call, net.size()) : 1);
    if (place.parent >= 0) net.send(parent_op(first_op, k), place.parent, dst, segments.size(k));
    receive(k + window);
  }
  return kOkOutcome;
}

namespace {

// Among some ranks of the group only, hosts are not looked at.
TreePlace chain_of(const CallContext& context, int root) noexcept {
  const bool all = context.hosts != nullptr && context.members == nullptr;
  return chain_place(context.rank, root, context.size, all ? &context.hosts->ranks : nullptr);
}

TreePlace place_in(bool chain, const Call& call, const CallContext& context) noexcept {
  return chain ? chain_of(context, call.root) : binomial_place(context.rank, call.root, context.size);
}

class TreeBroadcast final : public NetAlgorithm {
 public:
  explicit TreeBroadcast(bool chain) noexcept
      : NetAlgorithm(
            Collective::kBroadcast, chain ? "chain" : "tree",
            chain ? "segments go from rank to rank, each byte is sent once a rank" : "a binomial tree of messages"),
        chain_(chain) {}
  const char* refusal(const CallShape& shape) const noexcept override {
    return !chain_ && shape.ranks > 2 && shape.bytes > kMostTreeBytes ? "a tree repeats the bytes of a large message"
                                                                      : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(tree_ops(place_in(chain_, call, context)));
  }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const TreePlace place = place_in(chain_, call, context);
    NetCall net(context, tree_ops(place));
    net.greet();
    std::byte* data = call.output.data(0);
    if (net.rank() == call.root) copy_unless_same(data, call.input.data(0), call.input.size(0));
    return tree_broadcast(net, 0, place, data, call.input.size(0));
  }

  bool chain_;
};

class TreeReduce final : public NetAlgorithm {
 public:
  explicit TreeReduce(bool chain) noexcept
      : NetAlgorithm(Collective::kReduce, chain ? "chain" : "tree",
                     chain ? "segments go from rank to rank towards the root, each adds its own"
                           : "a binomial tree of messages"),
        chain_(chain) {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_rounding(shape)) return reason;
    return !chain_ && shape.ranks > 2 && shape.bytes > kMostTreeBytes
               ? "a tree's root receives a large message several times"
               : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    const TreePlace place = place_in(chain_, call, context);
    return NetCall::bytes_for(tree_ops(place)) + tree_reduce_memory(place, call);
  }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const TreePlace place = place_in(chain_, call, context);
    NetCall net(context, tree_ops(place));
    const Outcome outcome = tree_reduce(net, 0, place, call, net.rank() == call.root ? call.output.data(0) : nullptr);
    return outcome.ok() ? net.finish() : outcome;
  }

  bool chain_;
};

class TreeAllReduce final : public NetAlgorithm {
 public:
  TreeAllReduce() noexcept
      : NetAlgorithm(Collective::kAllReduce, "tree", "a binomial tree of messages to rank 0 and back") {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_rounding(shape)) return reason;
    return shape.bytes > kMostTreeAllReduceBytes ? "a tree repeats the bytes of a large message" : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    const TreePlace place = binomial_place(context.rank, 0, context.size);
    return NetCall::bytes_for(2 * tree_ops(place)) + tree_reduce_memory(place, call);
  }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const TreePlace place = binomial_place(context.rank, 0, context.size);
    const std::size_t ops = tree_ops(place);
    NetCall net(context, 2 * ops);
    std::byte* output = call.output.data(0);
    const Outcome outcome = tree_reduce(net, 0, place, call, output);
    return outcome.ok() ? tree_broadcast(net, ops, place, output, call.output.size(0)) : outcome;
  }
};

}  // namespace

AlgorithmList tree_algorithms() {
  return {std::make_shared<TreeAllReduce>(), std::make_shared<TreeBroadcast>(false),
          std::make_shared<TreeBroadcast>(true), std::make_shared<TreeReduce>(false),
          std::make_shared<TreeReduce>(true)};
}

}  // namespace tutti
