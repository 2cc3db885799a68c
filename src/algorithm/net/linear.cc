// Algorithms in which every block goes straight from its owner to its reader.
//
// With n ranks, latency a:
//   all_to_all      in step i rank r sends to r + i and receives from r - i, kPairs steps at a time; every rank sends
//   all
//                   of its blocks but its own; (n - 1) / kPairs a. Source: pairwise exchange, Thakur, Rabenseifner and
//                   Gropp, IJHPCA 2005.
//   gather, scatter the root receives, or sends, n - 1 blocks; a
// The receiver compares the size of each block with its own idea of it, even or uneven.
#include "algorithm/net/families.h"
#include "algorithm/net/net_algorithm.h"

namespace tutti {
namespace {

// Enough to keep a link busy while the next pair gets going, few enough that not everybody meets at one receiver.
constexpr std::size_t kPairs = 4;

class PairwiseAllToAll final : public NetAlgorithm {
 public:
  PairwiseAllToAll() noexcept
      : NetAlgorithm(Collective::kAllToAll, "pairwise",
                     "each pair of ranks exchanges its blocks, a few pairs at a time") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, 2 * kPairs);
    const Blocks& in = call.input;
    const Blocks& out = call.output;
    for (int i = 1; i < net.size(); ++i) {
      const std::size_t op = static_cast<std::size_t>(i) % kPairs;
      if (Outcome outcome = net.wait(op); !outcome.ok()) return outcome;
      if (Outcome outcome = net.wait(kPairs + op); !outcome.ok()) return outcome;
      net.recv(op, net.left(i), out.data(net.left(i)), out.size(net.left(i)));
      net.send(kPairs + op, net.right(i), in.data(net.right(i)), in.size(net.right(i)));
    }
    copy_block(out.data(net.rank()), in.data(net.rank()), in.size(net.rank()));
    return net.finish();
  }
};

class LinearGather final : public NetAlgorithm {
 public:
  LinearGather() noexcept : NetAlgorithm(Collective::kGather, "linear", "every rank sends its block to the root") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const bool root = context.rank == call.root;
    NetCall net(context, root ? static_cast<std::size_t>(context.size) : 1);
    net.greet();
    if (!root) {
      net.send(0, call.root, call.input.data(0), call.input.size(0));
      return net.finish();
    }
    for (int r = 0; r < net.size(); ++r) {
      if (r != call.root) net.recv(static_cast<std::size_t>(r), r, call.output.data(r), call.output.size(r));
    }
    copy_block(call.output.data(call.root), call.input.data(0), call.input.size(0));
    return net.finish();
  }
};

class LinearScatter final : public NetAlgorithm {
 public:
  LinearScatter() noexcept : NetAlgorithm(Collective::kScatter, "linear", "the root sends every rank its block") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const bool root = context.rank == call.root;
    NetCall net(context, root ? static_cast<std::size_t>(context.size) : 1);
    net.greet();
    if (!root) {
      net.recv(0, call.root, call.output.data(0), call.output.size(0));
      return net.finish();
    }
    for (int i = 1; i < net.size(); ++i) {
      const int r = net.right(i);
      net.send(static_cast<std::size_t>(r), r, call.input.data(r), call.input.size(r));
    }
    copy_block(call.output.data(0), call.input.data(call.root), call.output.size(0));
    return net.finish();
  }
};

}  // namespace

AlgorithmList linear_algorithms() {
  return {std::make_shared<PairwiseAllToAll>(), std::make_shared<LinearGather>(), std::make_shared<LinearScatter>()};
}

}  // namespace tutti
