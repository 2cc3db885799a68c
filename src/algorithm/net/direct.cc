// Reductions in which the rank that owns a chunk receives it from everybody and reduces all at once, in rank order.
//
// A sum of a narrow type is accumulated in fp32 and rounded once, and nothing wider than the type itself travels.
// With n ranks, a message of B bytes, latency a:
//   all_reduce      sends 2 (n-1)/n B a rank; n a (everybody to everybody, then around the ring)
//   reduce_scatter  sends (n-1)/n B, where B is all of a rank's input; a
//   reduce          sends B, receives (n-1) B at the root; a
// The price against the ring is a connection to every rank and n - 1 senders to one receiver. Source: the "pairwise
// exchange" of Thakur, Rabenseifner and Gropp, IJHPCA 2005, with the reduction deferred.
#include <span>

#include "algorithm/net/families.h"
#include "algorithm/net/ring.h"

namespace tutti {
namespace {

// What a rank holds of its peers' segments at a time; two rounds of them are under way.
constexpr std::size_t kRoundBytes = std::size_t{4} << 20;
constexpr std::size_t kLeastSegment = 8192;

constexpr int kRounds = 2;

std::size_t direct_ops(int ranks) noexcept { return 2 * kRounds * static_cast<std::size_t>(ranks); }

std::size_t segment_for(int ranks) noexcept {
  const std::size_t share = kRoundBytes / static_cast<std::size_t>(ranks) / 64 * 64;
  return std::clamp(share, kLeastSegment, kSegmentBytes);
}

// Of a rank whose own chunk has `own` bytes: that of a peer's segment, and of all of them.
std::size_t slot_for(int ranks, std::size_t own) noexcept { return (std::min(segment_for(ranks), own) + 63) / 64 * 64; }
std::size_t slots_for(int ranks, std::size_t own) noexcept {
  return kRounds * static_cast<std::size_t>(ranks) * slot_for(ranks, own);
}

std::size_t direct_memory(int ranks, std::size_t own) noexcept {
  return CallMemory::bytes_of<std::byte>(slots_for(ranks, own)) +
         CallMemory::bytes_of<const void*>(static_cast<std::size_t>(ranks));
}

// Chunk c of everybody's input goes to rank c, in rounds of a segment of each chunk.
// `only`: the one chunk there is, or -1 when every rank has one.
template <class SizeOf, class Own>
class DirectReduce {
 public:
  DirectReduce(NetCall& net, const Call& call, const SizeOf& size_of_chunk, const Own& own, int only)
      : net_(net),
        call_(call),
        size_of_(size_of_chunk),
        own_(own),
        only_(only),
        n_(net.size()),
        segment_(segment_for(n_)),
        slot_bytes_(slot_for(n_, size_of_(net.rank()))),
        slots_(net.memory().take<std::byte>(slots_for(n_, size_of_(net.rank()))).data()),
        sources_(net.memory().take<const void*>(static_cast<std::size_t>(n_))) {
    std::size_t largest = 0;
    for (int c = 0; c < n_; ++c) largest = std::max<std::size_t>(largest, size_of_(c));
    rounds_ = std::max<std::size_t>(1, (largest + segment_ - 1) / segment_);
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
  const std::size_t segment_;
  const std::size_t slot_bytes_;
  std::byte* const slots_;
  const std::span<const void*> sources_;
  std::size_t rounds_ = 0;
};

class DirectAllReduce final : public NetAlgorithm {
 public:
  DirectAllReduce() noexcept
      : NetAlgorithm(
            Collective::kAllReduce, "direct",
            "each rank reduces a part that all others send it, rounding once, then the parts go around the ring") {}
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(ops(context.size)) +
           direct_memory(context.size, Partition(call.input.size(0), context.size).size(context.rank));
  }

 private:
  static std::size_t ops(int ranks) noexcept { return std::max(direct_ops(ranks), kRingOps); }

  Outcome execute(const Call& call, CallContext& context) const override {
    const Partition chunks(call.input.size(0), context.size);
    NetCall net(context, ops(context.size));
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
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(direct_ops(context.size)) + direct_memory(context.size, call.input.size(context.rank));
  }

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
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(direct_ops(context.size)) +
           direct_memory(context.size, context.rank == call.root ? call.input.size(0) : 0);
  }

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
