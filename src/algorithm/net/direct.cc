// Reductions in which the rank that owns a chunk receives it from everybody and reduces all at once, in rank order.
//
// A sum of a narrow type is accumulated in fp32 and rounded once, and nothing wider than the type itself travels.
// With n ranks, a message of B bytes, latency a:
//   all_reduce      sends 2 (n-1)/n B a rank; n a (everybody to everybody, then around the ring)
//   reduce_scatter  sends (n-1)/n B, where B is all of a rank's input; a
//   reduce          sends B, receives (n-1) B at the root; a
// The price against the ring is a connection to every rank and n - 1 senders to one receiver. Source: the "pairwise
// exchange" of Thakur, Rabenseifner and Gropp, IJHPCA 2005, with the reduction deferred.
#include <vector>

#include "algorithm/net/families.h"
#include "algorithm/net/ring.h"

namespace tutti {
namespace {

// What a rank holds of its peers' segments at a time; two rounds of them are under way.
constexpr std::size_t kRoundBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastSegment = 8192;

constexpr int kRounds = 2;

std::size_t direct_ops(int ranks) noexcept { return 2 * kRounds * static_cast<std::size_t>(ranks); }

// Chunk c of everybody's input goes to rank c, in rounds of a segment of each chunk.
// `only`: the one chunk there is, or -1 when every rank has one.
template <class SizeOf, class Own>
class DirectReduce {
 public:
  DirectReduce(NetCall& net, const Call& call, const SizeOf& size_of_chunk, const Own& own, int only)
      : net_(net), call_(call), size_of_(size_of_chunk), own_(own), only_(only), n_(net.size()) {
    const std::size_t share = kRoundBytes / static_cast<std::size_t>(n_) / 64 * 64;
    segment_ = std::clamp(share, kLeastSegment, kSegmentBytes);
    std::size_t largest = 0;
    for (int c = 0; c < n_; ++c) largest = std::max<std::size_t>(largest, size_of_(c));
    rounds_ = std::max<std::size_t>(1, (largest + segment_ - 1) / segment_);
    const std::size_t slot = std::min(segment_, size_of_(net_.rank()));
    slot_bytes_ = (slot + 63) / 64 * 64;
    slots_ = net_.scratch(kRounds * static_cast<std::size_t>(n_) * slot_bytes_);
    sources_.resize(static_cast<std::size_t>(n_));
  }

  Outcome run(std::byte* result) {
    if (Outcome outcome = post(0); !outcome.ok()) return outcome;
    for (std::size_t k = 0; k < rounds_; ++k) {
      if (k + 1 < rounds_) {
        if (Outcome outcome = post(k + 1); !outcome.ok()) return outcome;
      }
      for (int i = 1; i < n_; ++i) {
        if (Outcome outcome = net_.wait(recv_op(k, i)); !outcome.ok()) return outcome;
      }
      reduce(k, result);
    }
    return net_.finish();
  }

 private:
  std::size_t recv_op(std::size_t k, int i) const noexcept {
    return k % kRounds * static_cast<std::size_t>(n_) + static_cast<std::size_t>(i);
  }
  std::size_t send_op(std::size_t k, int i) const noexcept { return direct_ops(n_) / 2 + recv_op(k, i); }
  std::byte* slot(std::size_t k, int i) const noexcept { return slots_ + recv_op(k, i) * slot_bytes_; }
  std::size_t begin(std::size_t k, int c) const noexcept { return std::min<std::size_t>(size_of_(c), k * segment_); }
  std::size_t size(std::size_t k, int c) const noexcept { return begin(k + 1, c) - begin(k, c); }
  // An empty chunk has one message too, so that the ranks compare their calls and sizes.
  bool travels(std::size_t k, int c) const noexcept { return size(k, c) != 0 || (k == 0 && (only_ < 0 || only_ == c)); }

  Outcome post(std::size_t k) noexcept {
    for (int i = 1; i < n_; ++i) {
      const int to = net_.right(i);
      if (travels(k, net_.rank())) net_.recv(recv_op(k, i), net_.left(i), slot(k, i), size(k, net_.rank()));
      if (!travels(k, to)) continue;
      if (Outcome outcome = net_.wait(send_op(k, i)); !outcome.ok()) return outcome;
      net_.send(send_op(k, i), to, own_(to) + begin(k, to), size(k, to));
    }
    return kOkOutcome;
  }

  void reduce(std::size_t k, std::byte* result) noexcept {
    const int me = net_.rank();
    if (size(k, me) == 0) return;
    sources_[static_cast<std::size_t>(me)] = own_(me) + begin(k, me);
    for (int i = 1; i < n_; ++i) sources_[static_cast<std::size_t>(net_.left(i))] = slot(k, i);
    reduce_sources(call_, result + begin(k, me), sources_.data(), n_, size(k, me));
  }

  NetCall& net_;
  const Call& call_;
  const SizeOf& size_of_;
  const Own& own_;
  const int only_;
  const int n_;
  std::size_t segment_ = 0;
  std::size_t rounds_ = 0;
  std::size_t slot_bytes_ = 0;
  std::byte* slots_ = nullptr;
  std::vector<const void*> sources_;
};

class DirectAllReduce final : public NetAlgorithm {
 public:
  DirectAllReduce() noexcept
      : NetAlgorithm(
            Collective::kAllReduce, "direct",
            "each rank reduces a part that all others send it, rounding once, then the parts go around the ring") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const Partition chunks(call.input.size(0), context.size);
    NetCall net(context, std::max(direct_ops(context.size), kRingOps));
    const std::byte* input = call.input.data(0);
    std::byte* output = call.output.data(0);
    const auto size_of_chunk = [&](int c) { return chunks.size(c); };
    const auto own = [&](int c) { return input + chunks.begin(c); };
    DirectReduce reduce(net, call, size_of_chunk, own, -1);
    const Outcome outcome = reduce.run(output + chunks.begin(net.rank()));
    return outcome.ok() ? ring_all_gather(net, size_of_chunk, [&](int c) { return output + chunks.begin(c); })
                        : outcome;
  }
};

class DirectReduceScatter final : public NetAlgorithm {
 public:
  DirectReduceScatter() noexcept
      : NetAlgorithm(Collective::kReduceScatter, "direct",
                     "each rank reduces the blocks that all others send it, in rank order, rounding once") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, direct_ops(context.size));
    const auto size_of_chunk = [&](int c) { return call.input.size(c); };
    const auto own = [&](int c) -> const std::byte* { return call.input.data(c); };
    DirectReduce reduce(net, call, size_of_chunk, own, -1);
    return reduce.run(call.output.data(0));
  }
};

class DirectRootReduce final : public NetAlgorithm {
 public:
  DirectRootReduce() noexcept
      : NetAlgorithm(Collective::kReduce, "direct", "the root receives all inputs and reduces them at once") {}

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, direct_ops(context.size));
    const auto size_of_chunk = [&](int c) { return c == call.root ? call.input.size(0) : 0; };
    const auto own = [&](int) -> const std::byte* { return call.input.data(0); };
    DirectReduce reduce(net, call, size_of_chunk, own, call.root);
    net.greet();
    return reduce.run(net.rank() == call.root ? call.output.data(0) : nullptr);
  }
};

}  // namespace

AlgorithmList direct_algorithms() {
  return {std::make_shared<DirectAllReduce>(), std::make_shared<DirectReduceScatter>(),
          std::make_shared<DirectRootReduce>()};
}

}  // namespace tutti
