// Algorithms in which every block goes straight from its owner to its reader.
//
// With n ranks, latency a:
//   all_to_all      in step i rank r sends to r + i and receives from r - i, kPairs steps at a time; every rank sends
//                   all of its blocks but its own; (n - 1) / kPairs a. Source: pairwise exchange, Thakur, Rabenseifner
//                   and Gropp, IJHPCA 2005.
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
  std::size_t memory(const Call&, const CallContext&) const noexcept override { return NetCall::bytes_for(kOps); }

 private:
  static constexpr std::size_t kOps = 2 * kPairs;

  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, kOps);
    const Blocks& in = call.input;
    const Blocks& out = call.output;
    for (int i = 1; i < net.size(); ++i) {
      const std::size_t op = static_cast<std::size_t>(i) % kPairs;
      if (Outcome outcome = net.wait(op); !outcome.ok()) return outcome;
      if (Outcome outcome = net.wait(kPairs + op); !outcome.ok()) return outcome;
      net.recv(op, net.left(i), out.data(net.left(i)), out.size(net.left(i)));
      net.send(kPairs + op, net.right(i), in.data(net.right(i)), in.size(net.right(i)));
    }
    copy_unless_same(out.data(net.rank()), in.data(net.rank()), in.size(net.rank()));
    return net.finish();
  }
};

class LinearRooted final : public NetAlgorithm {
 public:
  LinearRooted(Collective collective, std::string_view summary) noexcept
      : NetAlgorithm(collective, "linear", summary) {}
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(ops(context.rank == call.root, context.size));
  }

 private:
  static std::size_t ops(bool root, int ranks) noexcept { return root ? static_cast<std::size_t>(ranks) : 1; }

  Outcome execute(const Call& call, CallContext& context) const override {
    const bool gathers = collective() == Collective::kGather;
    const bool root = context.rank == call.root;
    const Blocks& own = gathers ? call.input : call.output;
    NetCall net(context, ops(root, context.size));
    net.greet();
    const auto move = [&, sends = gathers != root](std::size_t op, int peer, const Blocks& blocks, int block) {
      sends ? net.send(op, peer, blocks.data(block), blocks.size(block))
            : net.recv(op, peer, blocks.data(block), blocks.size(block));
    };
    if (!root) {
      move(0, call.root, own, 0);
      return net.finish();
    }
    const Blocks& all = gathers ? call.output : call.input;
    for (int i = 1; i < net.size(); ++i) move(static_cast<std::size_t>(net.right(i)), net.right(i), all, net.right(i));
    if (gathers) {
      copy_unless_same(all.data(call.root), own.data(0), own.size(0));
    } else {
      copy_unless_same(own.data(0), all.data(call.root), own.size(0));
    }
    return net.finish();
  }
};

}  // namespace

AlgorithmList linear_algorithms() {
  return {std::make_shared<PairwiseAllToAll>(),
          std::make_shared<LinearRooted>(Collective::kGather, "every rank sends its block to the root"),
          std::make_shared<LinearRooted>(Collective::kScatter, "the root sends every rank its block")};
}

}  // namespace tutti
