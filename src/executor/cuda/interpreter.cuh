// Runs the records of one thread block of a plan: the body of a kernel, on a GPU or on the host.
//
// Lanes. All workers of a block take each record together, 16 bytes of payload a lane, or several times as many, and
// turn. They run apart until a record joins them (DeviceOp::joins): where a record touches what an earlier one has
// touched, before words are raised, and after words were waited for (decide_joins()). A lane that has failed does
// nothing until the next join, where all leave together.
//
// Memory order. A word is raised by a release after a join and awaited by polling, then one acquire before a join: so
// what a block did before its signal is visible to the block that has waited. A packet is a word of 64 bits, payload
// and flag, so whoever sees the flag has the payload. It also says that its lane has read what it read before, so that
// the reader may overwrite that. On a GPU this needs no fence: a warp issues in order, and what a lane has loaded is in
// its registers before it stores what came of it. On the host stores of packets release and loads acquire.
//
// The number of an invocation is a count in device memory, each block's own: it gives the packets' flag and the half of
// scratch, so a captured launch can be replayed. Flags come back after 2^32 - 1 invocations.
//
// Thread rule: one block's. Knows nothing of the group but how to wait (device::Control).
#pragma once

#include "device/cuda/reducers.cuh"
#include "executor/cuda/device_program.h"
#include "executor/cuda/packet_words.cuh"
#include "executor/cuda/plan_wait.cuh"

namespace tutti::executor {

// R: how 16 bytes of every source become 16 of the result (reducers.cuh).
template <class R, class Team>
class PlanBlock {
 public:
  TUTTI_DEVICE PlanBlock(const Team& team, const device::Control& control, const PlanArgs& args)
      : team_(team), control_(control), args_(args) {}

  // Fetches what never changes. All threads, before prepare().
  TUTTI_DEVICE void fetch() {
    block_ = args_.blocks[team_.block()];
    ops_ = args_.ops + block_.first;
    operands_ = args_.operands + block_.first_operand;
#if defined(__CUDA_ARCH__)
    stage();
#endif
  }
  // What does not depend on other blocks. All threads, before a barrier of the block that run() comes after.
  TUTTI_DEVICE void prepare() {
    invocation_ = device::load_relaxed(args_.invocations + team_.block());
    flag_ = static_cast<std::uint32_t>(invocation_ % 0xffffffffu) + 1;
    half_ = invocation_ % args_.halves;
  }

  // Workers only. False on all or none: something did not come. `awaited`: of this call.
  TUTTI_DEVICE bool run(const device::Awaited& awaited) {
    awaited_ = awaited;
    for (std::uint32_t i = 0; i < block_.count; ++i) {
      const DeviceOp op = ops_[i];
      if (op.joins != 0 && join_failed()) return false;
      if (op.fences != 0) fence_packets();
      if (!failed_) execute(op);
      if (op.fences != 0) fence_packets();
    }
    if (join_failed()) return false;
    if (team_.worker() == 0) device::store_relaxed(args_.invocations + team_.block(), invocation_ + 1);
    return true;
  }

 private:
  static constexpr int kMost = device::kMaxRanks;  // sources at a time
  static constexpr int kInFlight = 4;              // items of a lane whose loads are under way together

#if defined(__CUDA_ARCH__)
  // Records that fit come to shared memory, by all threads at once: one after another they would each take a trip.
  __device__ __forceinline__ void stage() {
    constexpr std::uint32_t kStaged = 512;
    __shared__ uint4 staged[kStaged];
    const std::uint32_t ops = block_.count * 2;
    if (ops + block_.operands > kStaged) return;
    for (std::uint32_t i = threadIdx.x; i < ops + block_.operands; i += blockDim.x) {
      staged[i] =
          i < ops ? reinterpret_cast<const uint4*>(ops_)[i] : reinterpret_cast<const uint4*>(operands_)[i - ops];
    }
    ops_ = reinterpret_cast<const DeviceOp*>(staged);
    operands_ = reinterpret_cast<const DeviceOperand*>(staged + ops);
  }
#endif

  // All lanes have ended what came before; whether one has failed. Its failure is recorded here: a call amid the data
  // would make all registers spill.
  TUTTI_DEVICE bool join_failed() const {
    if (failed_) record_failure(control_, awaited_);
    return team_.any_worker(failed_);
  }

  TUTTI_DEVICE const DeviceOperand& operand(const DeviceOp& op, std::uint32_t i) const {
    return operands_[op.first - block_.first_operand + i];
  }
  TUTTI_DEVICE std::byte* address(const DeviceOp& op, std::uint32_t i) const {
    const DeviceOperand o = operand(op, i);
    if (o.place >= kPeers)
      return args_.peers.block((o.place - kPeers) / kUserBlocks, (o.place - kPeers) % kUserBlocks) + o.value;
    if (o.place != kFixed) return args_.user[o.place - 1] + o.value;
    return reinterpret_cast<std::byte*>(o.value + half_ * o.extra * 16);
  }
  TUTTI_DEVICE std::uint64_t* packets(const DeviceOp& op, std::uint32_t i) const {
    return reinterpret_cast<std::uint64_t*>(address(op, i));
  }
  TUTTI_DEVICE void execute(const DeviceOp& op) {
    switch (op.code) {
      case DeviceCode::kSignal:
        return signal(op);
      case DeviceCode::kWait:
        return wait(op);
      case DeviceCode::kCopy:
        return copy(op);
      case DeviceCode::kReduce:
        return reduce(op, args_.spec);
      case DeviceCode::kAverage:
        return average(op);
      case DeviceCode::kPack:
      case DeviceCode::kPad:
        return pack(op);
      case DeviceCode::kForward:
      case DeviceCode::kCopyPackets:
      case DeviceCode::kUnpack:
      case DeviceCode::kAwait:
        return pass_on(op);
      case DeviceCode::kFold:
        return fold(op);
    }
  }

  TUTTI_DEVICE void signal(const DeviceOp& op) const {
    for (auto i = static_cast<std::uint32_t>(team_.worker()); i < op.sources;
         i += static_cast<std::uint32_t>(team_.workers())) {
      const DeviceOperand o = operand(op, i);
      const std::uint64_t raised = device::load_relaxed(args_.slots + o.extra) + 1;
      device::store_relaxed(args_.slots + o.extra, raised);
      // release: with the join before it, all that the block has written and read; pairs with the acquire in wait().
      device::store_release(reinterpret_cast<std::uint64_t*>(o.value), raised);
    }
  }

  TUTTI_DEVICE void wait(const DeviceOp& op) {
    for (auto i = static_cast<std::uint32_t>(team_.worker()); i < op.sources;
         i += static_cast<std::uint32_t>(team_.workers())) {
      const DeviceOperand o = operand(op, i);
      const auto* word = reinterpret_cast<const std::uint64_t*>(o.value);
      const std::uint64_t wanted = device::load_relaxed(args_.slots + o.extra) + 1;
      awaited_.peer = o.peer;
      if (!await([&] { return device::load_relaxed(word) >= wanted; })) return;
      // acquire: pairs with the release in signal(); the join after it passes it on to the other lanes.
      static_cast<void>(device::load_acquire(word));
      device::store_relaxed(args_.slots + o.extra, wanted);
    }
  }

  // `ready` may say whom it waits for in awaited_.peer.
  template <class Ready>
  TUTTI_DEVICE bool await(Ready ready) {
    failed_ = !wait_in_plan(control_, awaited_, ready);
    return !failed_;
  }

  TUTTI_DEVICE void copy(const DeviceOp& op) const {
    const std::byte* from = address(op, 0);
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * 16;
    auto at = static_cast<std::uint64_t>(team_.worker()) * 16;
    for (; at + (kInFlight - 1) * stride + 16 <= op.bytes; at += kInFlight * stride) {
      device::Vec16 v[kInFlight];
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) v[u] = load_any(from + at + u * stride, 16);
      for (std::uint32_t t = 0; t < op.targets; ++t) {
        std::byte* to = address(op, op.sources + t) + at;
        TUTTI_UNROLL
        for (int u = 0; u < kInFlight; ++u) store_any(to + u * stride, v[u], 16);
      }
    }
    for (; at < op.bytes; at += stride) {
      const device::Vec16 v = load_any(from + at, op.bytes - at);
      for (std::uint32_t t = 0; t < op.targets; ++t) {
        store_any(address(op, op.sources + t) + at, v, op.bytes - at);
      }
    }
  }

  TUTTI_DEVICE void reduce(const DeviceOp& op, const cuda::ReduceSpec& spec) const {
    if (op.sources == 2) {
      reduce_items<2>(op, spec);
    } else {
      reduce_items<kMost>(op, spec);
    }
  }
  // kSources: as of fold_items().
  template <std::uint32_t kSources>
  TUTTI_DEVICE void reduce_items(const DeviceOp& op, const cuda::ReduceSpec& spec) const {
    const std::uint32_t sources = kSources == 2 ? 2 : op.sources;
    const std::byte* from[kSources];
    TUTTI_UNROLL
    for (std::uint32_t s = 0; s < kSources; ++s) from[s] = s < sources ? address(op, s) : nullptr;
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * 16;
    auto at = static_cast<std::uint64_t>(team_.worker()) * 16;
    if (kSources == 2 && op.targets == 1) at = reduce_pairs(op, spec, at);
    for (; at < op.bytes; at += stride) {
      const std::uint64_t left = op.bytes - at;
      device::Vec16 v[kSources];
      TUTTI_UNROLL
      for (std::uint32_t s = 0; s < kSources; ++s) {
        if (s < sources) v[s] = load_any(from[s] + at, left);
      }
      const device::Vec16 result = R::reduce(v, static_cast<int>(sources), spec);
      for (std::uint32_t t = 0; t < op.targets; ++t) {
        store_any(address(op, sources + t) + at, result, left);
      }
    }
  }
  // Of two sources, as many items as come in whole groups of kInFlight; where the others begin.
  TUTTI_DEVICE std::uint64_t reduce_pairs(const DeviceOp& op, const cuda::ReduceSpec& spec, std::uint64_t at) const {
    const std::byte *const a = address(op, 0), *const b = address(op, 1);
    std::byte* const to = address(op, 2);
    if (!device::aligned(a, 16) || !device::aligned(b, 16) || !device::aligned(to, 16)) return at;
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * 16;
    TUTTI_ROLLED
    for (; at + (kInFlight - 1) * stride + 16 <= op.bytes; at += kInFlight * stride) {
      device::Vec16 v[kInFlight][2];
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) {
        v[u][0] = load_aligned(a + at + u * stride);
        v[u][1] = load_aligned(b + at + u * stride);
      }
      TUTTI_UNROLL
      for (int u = 0; u < kInFlight; ++u) store_aligned(to + at + u * stride, R::reduce(v[u], 2, spec));
    }
    return at;
  }

  TUTTI_DEVICE void average(const DeviceOp& op) const {
    cuda::ReduceSpec spec = args_.spec;
    spec.op = ReduceOp::kAvg;
    reduce(op, spec);
  }

  // f(item) for this lane's share of the packets.
  template <class F>
  TUTTI_DEVICE void for_items(const DeviceOp& op, F f) const {
    const PacketShare mine = share();
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * kItemBytes;
    for (std::uint64_t at = mine.first; at < op.bytes; at += stride) f(packet_item<false>(at, mine, op.bytes));
  }
  TUTTI_DEVICE void put_packets(const DeviceOp& op, std::uint32_t target, const PacketItem& item,
                                const PacketWords& p) const {
    std::uint64_t* to = packets(op, op.sources + target);
    store_words(to, item, p, device::aligned(to, 16));
  }
  TUTTI_DEVICE PacketShare share() const { return packet_share(team_, args_.spec.dtype == DataType::kComplex128); }
  // some(first) for every kInFlight items that this lane has whole, if that is `wanted`, then one(first) for every
  // other. Where items are taken together, nothing is looked at but their packets: code for every length and alignment,
  // so many times, would make all registers spill.
  template <class Some, class One>
  TUTTI_DEVICE void for_somes(const DeviceOp& op, const PacketShare& share, bool wanted, Some some, One one) const {
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * kItemBytes;
    std::uint64_t at = share.first;
    TUTTI_ROLLED
    for (; wanted && at + (kInFlight - 1) * stride + share.apart + 8 <= op.bytes; at += kInFlight * stride) some(at);
    TUTTI_ROLLED
    for (; at < op.bytes; at += stride) one(packet_item<false>(at, share, op.bytes));
  }
  // then(index, item) for kInFlight whole items, the first at `first`.
  template <class Then>
  TUTTI_DEVICE void for_each(const PacketShare& share, std::uint64_t first, Then then) const {
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * kItemBytes;
    TUTTI_UNROLL
    for (int u = 0; u < kInFlight; ++u) then(u, packet_item<true>(first + u * stride, share, 0));
  }
  TUTTI_DEVICE bool targets_hold_pairs(const DeviceOp& op) const {
    bool all = true;
    for (std::uint32_t t = 0; t < op.targets; ++t) all = all && device::aligned(packets(op, op.sources + t), 16);
    return all;
  }

  TUTTI_DEVICE void pack(const DeviceOp& op) const {
    const std::byte* const from = op.sources == 0 ? nullptr : address(op, 0);
    const bool aligned = device::aligned(from, 8);
    const PacketShare mine = share();
    for_somes(
        op, mine, from != nullptr && aligned && targets_hold_pairs(op),
        [&](std::uint64_t first) {
          device::Vec16 v[kInFlight];
          for_each(mine, first, [&](int u, const PacketItem& item) { v[u] = load_pieces<true>(from, item, 0, true); });
          for (std::uint32_t t = 0; t < op.targets; ++t) {
            std::uint64_t* const to = packets(op, op.sources + t);
            for_each(mine, first,
                     [&](int u, const PacketItem& item) { store_words(to, item, words_of(v[u], flag_), true); });
          }
        },
        [&](const PacketItem& item) {
          device::Vec16 v{{0, 0, 0, 0}};
          if (from != nullptr) v = load_pieces<false>(from, item, op.bytes, aligned);
          for (std::uint32_t t = 0; t < op.targets; ++t) put_packets(op, t, item, words_of(v, flag_));
        });
  }

  // Packets to where they are wanted, packed or not.
  TUTTI_DEVICE void pass_on(const DeviceOp& op) {
    const std::uint64_t* const from = packets(op, 0);
    awaited_.peer = operand(op, 0).peer;
    const bool pairs = device::aligned(from, 16), unpacks = op.code == DeviceCode::kUnpack;
    const bool waits = op.code != DeviceCode::kCopyPackets;
    const bool fits = unpacks ? device::aligned(address(op, 1), 8) : targets_hold_pairs(op);
    const PacketShare mine = share();
    for_somes(
        op, mine, pairs && fits,
        [&](std::uint64_t first) {
          if (failed_) return;
          PacketWords p[kInFlight];
          const auto poll = [&] {
            for_each(mine, first, [&](int u, const PacketItem& item) { p[u] = load_packets(from, item, true); });
            bool all = true;
            for_each(mine, first,
                     [&](int u, const PacketItem& item) { all = all && packets_arrived(p[u], item, flag_); });
            return all || !waits;
          };
          if (!await(poll)) return;
          if (unpacks) {
            std::byte* const to = address(op, 1);
            return for_each(mine, first, [&](int u, const PacketItem& item) {
              store_pieces<true>(to, item, payload_of(p[u]), 0, true);
            });
          }
          for (std::uint32_t t = 0; t < op.targets; ++t) {
            std::uint64_t* const to = packets(op, op.sources + t);
            for_each(mine, first, [&](int u, const PacketItem& item) { store_words(to, item, p[u], true); });
          }
        },
        [&](const PacketItem& item) {
          if (failed_) return;
          PacketWords p;
          if (!await([&] {
                p = load_packets(from, item, pairs);
                return !waits || packets_arrived(p, item, flag_);
              })) {
            return;
          }
          if (unpacks) {
            std::byte* to = address(op, 1);
            return store_pieces<false>(to, item, payload_of(p), op.bytes, device::aligned(to, 8));
          }
          for (std::uint32_t t = 0; t < op.targets; ++t) put_packets(op, t, item, p);
        });
  }

  // For few sources code of their own: what a lane does for an item is a long way for a small call, and most of it
  // would be for sources that there are not.
  TUTTI_DEVICE void fold(const DeviceOp& op) {
    if (op.sources == 2) {
      fold_items<2>(op);
    } else if (op.sources <= 4) {
      fold_items<4>(op);
    } else {
      fold_items<kMost>(op);
    }
  }
  // kSources: 2 if there are so many, else the most that there may be. The packets of an item are polled four sources
  // at a time: their latencies overlap, and the words fit into registers.
  template <std::uint32_t kSources>
  TUTTI_DEVICE void fold_items(const DeviceOp& op) {
    constexpr std::uint32_t kTogether = kSources < 4 ? kSources : 4;
    const std::uint32_t sources = kSources == 2 ? 2 : op.sources, apart = op.plain;
    std::byte* const to = address(op, sources);
    const bool to_pieces = device::aligned(to, 8);
    for_items(op, [&](const PacketItem& item) {
      if (failed_) return;
      device::Vec16 v[kSources];
      if (apart != kNoPlain) {
        const std::byte* from = address(op, apart);
        const device::Vec16 plain = load_pieces<false>(from, item, op.bytes, device::aligned(from, 8));
        TUTTI_UNROLL
        for (std::uint32_t s = 0; s < kSources; ++s) {
          if (s == apart) v[s] = plain;
        }
      }
      const auto poll = [&] {
        bool all = true;
        TUTTI_UNROLL
        for (std::uint32_t first = 0; first < kSources; first += kTogether) {
          PacketWords p[kTogether];
          TUTTI_UNROLL
          for (std::uint32_t s = 0; s < kTogether; ++s) {
            if (first + s >= sources || first + s == apart) continue;
            const std::uint64_t* from = packets(op, first + s);
            p[s] = load_packets(from, item, device::aligned(from, 16));
          }
          TUTTI_UNROLL
          for (std::uint32_t s = 0; s < kTogether; ++s) {
            if (first + s >= sources || first + s == apart) continue;
            v[first + s] = payload_of(p[s]);
            if (packets_arrived(p[s], item, flag_)) continue;
            all = false;
            awaited_.peer = operand(op, first + s).peer;  // for the record of a failure: any that is missing
          }
        }
        return all;
      };
      if (!await(poll)) return;
      const device::Vec16 result = R::reduce(v, static_cast<int>(sources), args_.spec);
      store_pieces<false>(to, item, result, op.bytes, to_pieces);
      for (std::uint32_t t = 1; t < op.targets; ++t) put_packets(op, t, item, words_of(result, flag_));
    });
  }

  const Team& team_;
  const device::Control& control_;
  const PlanArgs& args_;
  device::Awaited awaited_{};
  DeviceBlock block_;
  const DeviceOp* ops_ = nullptr;
  const DeviceOperand* operands_ = nullptr;
  std::uint64_t invocation_ = 0;
  std::uint32_t flag_ = 0;
  std::uint64_t half_ = 0;
  bool failed_ = false;
};

}  // namespace tutti::executor
