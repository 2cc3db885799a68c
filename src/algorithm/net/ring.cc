// Algorithms around the ring of ranks: each sends to its right neighbour and receives from its left one only.
//
// Sources: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 2009;
// Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 2005. With n
// ranks, a message of B bytes, latency a a message:
//   all_reduce      sends 2 (n-1)/n B a rank; 2 (n-1) a
//   reduce_scatter  sends (n-1)/n B, where B is all of a rank's input; (n-1) a
//   all_gather      sends (n-1)/n B, where B is all of the output; (n-1) a
// Chunk c is summed along the ring from rank c + 1 to rank c: ((x[c+1] + x[c+2]) + ...) + x[c]. The order depends on
// the ranks only, and everyone receives the finished chunk, so all have the same bits. Partial results of types
// narrower than fp32 would be rounded at every rank, or travel at twice the size: those sums are left to direct.cc.
#include "algorithm/net/ring.h"

#include "algorithm/net/families.h"

namespace tutti {
namespace {

// Reduces chunk `rank` of all ranks into `result`. own(c): this rank's data of chunk c.
template <class SizeOf, class Own>
Outcome ring_reduce_scatter(NetCall& net, const Call& call, const SizeOf& size_of_chunk, const Own& own,
                            std::byte* result) {
  const int n = net.size();
  const std::size_t slot_bytes = RingLap<SizeOf>(n, size_of_chunk).segment_bytes();
  std::byte* slots = net.memory().take<std::byte>(kRingWindow * slot_bytes).data();
  const auto land = [&](const RingItem& item) { return slots + item.slot * slot_bytes; };
  const auto take = [&](const RingItem& item, std::byte* partial) {
    const bool last = item.step == n - 2;
    combine(call, last ? result + item.offset : partial, partial, own(item.chunk) + item.offset, item.bytes,
            last ? divisor_of(call, n) : 1);
  };
  return ring_pass(net, net.left(), size_of_chunk, own(net.left()), land, take);
}

template <class SizeOf>
std::size_t ring_reduce_scatter_memory(int ranks, const SizeOf& size_of_chunk) noexcept {
  return CallMemory::bytes_of<std::byte>(kRingWindow * RingLap<SizeOf>(ranks, size_of_chunk).segment_bytes());
}

class RingAllReduce final : public NetAlgorithm {
 public:
  RingAllReduce() noexcept
      : NetAlgorithm(Collective::kAllReduce, "ring",
                     "messages around the ring of ranks: reduce-scatter, then all-gather; each byte is sent twice") {}
  const char* refusal(const CallShape& shape) const noexcept override { return refuse_rounding(shape); }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    const Partition chunks(call.input.size(0), context.size);
    return NetCall::bytes_for(kRingOps) +
           ring_reduce_scatter_memory(context.size, [&](int c) { return chunks.size(c); });
  }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    const Partition chunks(call.input.size(0), context.size);
    NetCall net(context, kRingOps);
    const auto size_of_chunk = [&](int c) { return chunks.size(c); };
    const std::byte* input = call.input.data(0);
    std::byte* output = call.output.data(0);
    if (net.size() == 1) return copy_unless_same(output, input, call.input.size(0)), kOkOutcome;
    const auto own = [&](int c) { return input + chunks.begin(c); };
    const Outcome outcome = ring_reduce_scatter(net, call, size_of_chunk, own, output + chunks.begin(net.rank()));
    return outcome.ok() ? ring_all_gather(net, size_of_chunk, [&](int c) { return output + chunks.begin(c); })
                        : outcome;
  }
};

class RingReduceScatter final : public NetAlgorithm {
 public:
  RingReduceScatter() noexcept
      : NetAlgorithm(Collective::kReduceScatter, "ring", "partial sums travel around the ring of ranks") {}
  const char* refusal(const CallShape& shape) const noexcept override { return refuse_rounding(shape); }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(kRingOps) +
           ring_reduce_scatter_memory(context.size, [&](int c) { return call.input.size(c); });
  }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, kRingOps);
    if (net.size() == 1)
      return copy_unless_same(call.output.data(0), call.input.data(0), call.output.size(0)), kOkOutcome;
    return ring_reduce_scatter(
        net, call, [&](int c) { return call.input.size(c); },
        [&](int c) -> const std::byte* { return call.input.data(c); }, call.output.data(0));
  }
};

class RingAllGather final : public NetAlgorithm {
 public:
  RingAllGather() noexcept : NetAlgorithm(Collective::kAllGather, "ring", "blocks travel around the ring of ranks") {}
  std::size_t memory(const Call&, const CallContext&) const noexcept override { return NetCall::bytes_for(kRingOps); }

 private:
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, kRingOps);
    copy_unless_same(call.output.data(net.rank()), call.input.data(0), call.input.size(0));
    return ring_all_gather(
        net, [&](int c) { return call.output.size(c); }, [&](int c) { return call.output.data(c); });
  }
};

}  // namespace

AlgorithmList ring_algorithms() {
  return {std::make_shared<RingAllReduce>(), std::make_shared<RingReduceScatter>(), std::make_shared<RingAllGather>()};
}

}  // namespace tutti
