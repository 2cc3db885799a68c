// Algorithms of log2(n) steps in which every rank takes the same part: in step k rank r sends to r + 2^k.
//
//   barrier      log2(n) a; no bytes. Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
//                IJPP 1988.
//   all_reduce   log2(n) a; each rank sends (n-1) B and reduces all inputs itself, in rank order, rounding once.
//   Source:
//                the all-gather of Bruck et al., "Efficient algorithms for all-to-all communications in multiport
//                message-passing systems", TPDS 1997. For messages so small that only the latency counts.
#include <span>

#include "algorithm/net/families.h"
#include "algorithm/net/net_algorithm.h"

namespace tutti {
namespace {

constexpr std::size_t kMostGatheredBytes = 64 * 1024;

std::size_t steps_of(int ranks) noexcept {
  std::size_t steps = 0;
  for (int distance = 1; distance < ranks; distance *= 2) ++steps;
  return steps;
}

class DisseminationBarrier final : public NetAlgorithm {
 public:
  DisseminationBarrier() noexcept
      : NetAlgorithm(Collective::kBarrier, "dissemination", "empty messages over doubling distances") {}
  std::size_t memory(const Call&, const CallContext& context) const noexcept override {
    return NetCall::bytes_for(2 * steps_of(context.size));
  }

 private:
  Outcome execute(const Call&, CallContext& context) const override {
    NetCall net(context, 2 * steps_of(context.size));
    std::size_t op = 0;
    for (int distance = 1; distance < net.size(); distance *= 2, op += 2) {
      net.recv(op, net.left(distance), nullptr, 0);
      net.send(op + 1, net.right(distance), nullptr, 0);
      if (Outcome outcome = net.wait(op); !outcome.ok()) return outcome;
    }
    return net.finish();
  }
};

class DisseminationAllReduce final : public NetAlgorithm {
 public:
  DisseminationAllReduce() noexcept
      : NetAlgorithm(Collective::kAllReduce, "dissemination",
                     "all inputs reach all ranks over doubling distances, and each reduces them itself") {}
  const char* refusal(const CallShape& shape) const noexcept override {
    return shape.bytes > kMostGatheredBytes / static_cast<std::size_t>(std::max(1, shape.ranks))
               ? "all inputs together are too large to be sent to everybody"
               : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& context) const noexcept override {
    const auto n = static_cast<std::size_t>(context.size);
    return NetCall::bytes_for(2 * steps_of(context.size)) + n * CallMemory::bytes_of<std::byte>(call.input.size(0)) +
           CallMemory::bytes_of<const void*>(n);
  }

 private:
  // Block i is the input of rank r - i.
  Outcome execute(const Call& call, CallContext& context) const override {
    NetCall net(context, 2 * steps_of(context.size));
    const std::size_t bytes = call.input.size(0);
    const std::size_t stride = CallMemory::bytes_of<std::byte>(bytes);
    std::byte* blocks = net.memory().take<std::byte>(stride * static_cast<std::size_t>(net.size())).data();
    const std::span<const void*> sources = net.memory().take<const void*>(static_cast<std::size_t>(net.size()));
    copy_unless_same(blocks, call.input.data(0), bytes);
    std::size_t op = 0;
    for (int distance = 1; distance < net.size(); distance *= 2, op += 2) {
      const std::size_t part = stride * static_cast<std::size_t>(std::min(distance, net.size() - distance));
      net.recv(op, net.left(distance), blocks + stride * static_cast<std::size_t>(distance), part);
      net.send(op + 1, net.right(distance), blocks, part);
      if (Outcome outcome = net.wait(op); !outcome.ok()) return outcome;
    }
    for (int i = 0; i < net.size(); ++i) {
      sources[static_cast<std::size_t>(net.left(i))] = blocks + stride * static_cast<std::size_t>(i);
    }
    reduce_sources(call, call.output.data(0), sources.data(), net.size(), bytes);
    return net.finish();
  }
};

}  // namespace

AlgorithmList dissemination_algorithms() {
  return {std::make_shared<DisseminationBarrier>(), std::make_shared<DisseminationAllReduce>()};
}

}  // namespace tutti
