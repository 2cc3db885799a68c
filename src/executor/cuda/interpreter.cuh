// Runs the records of one thread block of a plan: the body of a kernel, on a GPU or on the host.
//
// Lanes. All workers of a block take each record together, 16 bytes of payload a lane and turn. They run apart until a
// record joins them (DeviceOp::joins): where a record touches what an earlier one has touched, before words are raised,
// and after words were waited for (lowering.cc). A lane that has failed does nothing until the next join, where all
// leave together.
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
#include "tutti/device/packets.cuh"
#include "tutti/device/wait.cuh"

#if !defined(__CUDA_ARCH__)
#include <thread>
#endif

namespace tutti::executor {

// Two packets: two words (payload, flag in the upper half).
TUTTI_DEVICE void store_packet_pair(std::uint64_t* to, std::uint64_t a, std::uint64_t b) {
#if defined(__CUDA_ARCH__)
  device::store_relaxed(reinterpret_cast<device::Pair64*>(to), device::Pair64{a, b});
#else
  // release: what this lane has read before it has read; pairs with the acquire in load_packet().
  device::store_release(to, a);
  device::store_release(to + 1, b);
#endif
}
TUTTI_DEVICE void store_packet(std::uint64_t* to, std::uint64_t word) {
#if defined(__CUDA_ARCH__)
  device::store_relaxed(to, word);
#else
  device::store_release(to, word);    // release: as above
#endif
}
TUTTI_DEVICE std::uint64_t load_packet(const std::uint64_t* from) {
#if defined(__CUDA_ARCH__)
  return device::load_relaxed(from);
#else
  return device::load_acquire(from);  // acquire: pairs with the releases above
#endif
}

// The packets of up to 16 bytes of payload.
struct PacketWords {
  std::uint64_t w[4];
};
TUTTI_DEVICE PacketWords load_packets(const std::uint64_t* from, int count) {
  PacketWords p{{0, 0, 0, 0}};
#if defined(__CUDA_ARCH__)
  if (count == 4 && device::aligned(from, 16)) {
    const device::Pair64 a = device::load_relaxed(reinterpret_cast<const device::Pair64*>(from));
    const device::Pair64 b = device::load_relaxed(reinterpret_cast<const device::Pair64*>(from + 2));
    return {{a.lo, a.hi, b.lo, b.hi}};
  }
#endif
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i < count) p.w[i] = load_packet(from + i);
  }
  return p;
}
TUTTI_DEVICE bool packets_arrived(const PacketWords& p, int count, std::uint32_t flag) {
  bool all = true;
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) all = all && (i >= count || static_cast<std::uint32_t>(p.w[i] >> 32) == flag);
  return all;
}
TUTTI_DEVICE device::Vec16 payload_of(const PacketWords& p) {
  return {{static_cast<std::uint32_t>(p.w[0]), static_cast<std::uint32_t>(p.w[1]), static_cast<std::uint32_t>(p.w[2]),
           static_cast<std::uint32_t>(p.w[3])}};
}
TUTTI_DEVICE void store_words(std::uint64_t* to, const PacketWords& p, int count) {
  if (count == 4 && device::aligned(to, 16)) {
    store_packet_pair(to, p.w[0], p.w[1]);
    store_packet_pair(to + 2, p.w[2], p.w[3]);
    return;
  }
  TUTTI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (i < count) store_packet(to + i, p.w[i]);
  }
}
TUTTI_DEVICE void store_packets(std::uint64_t* to, const device::Vec16& v, int count, std::uint32_t flag) {
  const std::uint64_t high = static_cast<std::uint64_t>(flag) << 32;
  store_words(to, PacketWords{{v.w[0] | high, v.w[1] | high, v.w[2] | high, v.w[3] | high}}, count);
}

// An item of 16 bytes (or `left`, if less) at any alignment: one call, so that the loops around it stay short.
TUTTI_DEVICE_CALL device::Vec16 load_item(const std::byte* p, std::uint64_t left) { return device::load_user(p, left); }
TUTTI_DEVICE_CALL void store_item(std::byte* p, device::Vec16 v, std::uint64_t left) { device::store_user(p, v, left); }
TUTTI_DEVICE device::Vec16 load_any(const std::byte* p, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) return *reinterpret_cast<const device::Vec16*>(p);
#endif
  return load_item(p, left);
}
TUTTI_DEVICE void store_any(std::byte* p, const device::Vec16& v, std::uint64_t left) {
#if defined(__CUDA_ARCH__)
  if (left >= 16 && device::aligned(p, 16)) {
    *reinterpret_cast<device::Vec16*>(p) = v;
    return;
  }
#endif
  store_item(p, v, left);
}

// R: how 16 bytes of every source become 16 of the result (reducers.cuh).
template <class R, class Team>
class PlanBlock {
 public:
  TUTTI_DEVICE PlanBlock(const Team& team, const device::Control& control, const PlanArgs& args)
      : team_(team), control_(control), args_(args) {}

  // Fetches what does not depend on other blocks. All threads, before a barrier of the block that run() comes after.
  TUTTI_DEVICE void prepare() {
    invocation_ = device::load_relaxed(args_.invocations + team_.block());
    flag_ = static_cast<std::uint32_t>(invocation_ % 0xffffffffu) + 1;
    half_ = invocation_ % args_.halves;
    block_ = args_.blocks[team_.block()];
    ops_ = args_.ops + block_.first;
    operands_ = args_.operands + block_.first_operand;
#if defined(__CUDA_ARCH__)
    stage();
#endif
  }

  // Workers only. False on all or none: something did not come. `awaited`: of this call.
  TUTTI_DEVICE bool run(const device::Awaited& awaited) {
    awaited_ = awaited;
    for (std::uint32_t i = 0; i < block_.count; ++i) {
      const DeviceOp op = ops_[i];
      if (op.joins != 0 && team_.any_worker(failed_)) return false;
      if (op.fences != 0) fence();
      if (!failed_) execute(op);
      if (op.fences != 0) fence();
    }
    if (team_.any_worker(failed_)) return false;
    if (team_.worker() == 0) device::store_relaxed(args_.invocations + team_.block(), invocation_ + 1);
    return true;
  }

 private:
  static constexpr int kMost = device::kMaxRanks;  // sources at a time

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

  TUTTI_DEVICE const DeviceOperand& operand(const DeviceOp& op, std::uint32_t i) const {
    return operands_[op.first - block_.first_operand + i];
  }
  TUTTI_DEVICE std::byte* address(const DeviceOp& op, std::uint32_t i) const {
    const DeviceOperand o = operand(op, i);
    if (o.place != kFixed) return args_.user[o.place - 1] + o.value;
    return reinterpret_cast<std::byte*>(o.value + half_ * o.extra * 16);
  }
  TUTTI_DEVICE std::uint64_t* packets(const DeviceOp& op, std::uint32_t i) const {
    return reinterpret_cast<std::uint64_t*>(address(op, i));
  }
  TUTTI_DEVICE static int packets_in(std::uint64_t left) { return left >= 16 ? 4 : static_cast<int>((left + 3) / 4); }

  // Packets that order plain data: joins before and after make each lane's fence speak for the block. The host's
  // packets release and acquire as they are.
  TUTTI_DEVICE static void fence() {
#if defined(__CUDA_ARCH__)
    __threadfence_system();
#endif
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
      if (!await(o.peer, [&] { return device::load_relaxed(word) >= wanted; })) return;
      // acquire: pairs with the release in signal(); the join after it passes it on to the other lanes.
      static_cast<void>(device::load_acquire(word));
      device::store_relaxed(args_.slots + o.extra, wanted);
    }
  }

  template <class Ready>
  TUTTI_DEVICE bool await(int peer, Ready ready) {
    awaited_.peer = peer;
    if (peer == control_.rank ? await_here(ready) : device::wait_until(control_, awaited_, ready)) return true;
    failed_ = true;
    return false;
  }

  // For another block of this rank, which waits itself: its wait fails first, and says for whom. The limit is there in
  // case that none does.
  template <class Ready>
  TUTTI_DEVICE bool await_here(Ready ready) {
    std::uint64_t started = 0;
    for (std::uint32_t polls = 1; !ready(); ++polls) {
#if !defined(__CUDA_ARCH__)
      std::this_thread::yield();
#endif
      if (polls % device::kPollsPerLook != 0) continue;
      const std::uint64_t now = device::clock_ns();
      if (started == 0) started = now;
      const bool late = (now - started) / 2 > device::timeout_ns(*control_.host, awaited_.ticket);
      if ((late || device::load_relaxed(control_.poison) != 0) && device::give_up(control_, awaited_, started)) {
        return false;
      }
    }
    return true;
  }

  // f(offset, bytes left) for this lane's share of the payload.
  template <class F>
  TUTTI_DEVICE void for_share(const DeviceOp& op, F f) const {
    const auto stride = static_cast<std::uint64_t>(team_.workers()) * 16;
    for (auto at = static_cast<std::uint64_t>(team_.worker()) * 16; at < op.bytes; at += stride) f(at, op.bytes - at);
  }

  TUTTI_DEVICE void copy(const DeviceOp& op) const {
    constexpr int kInFlight = 4;
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
    const std::byte* from[kMost];
    TUTTI_UNROLL
    for (std::uint32_t s = 0; s < kMost; ++s) from[s] = s < op.sources ? address(op, s) : nullptr;
    for_share(op, [&](std::uint64_t at, std::uint64_t left) {
      device::Vec16 v[kMost];
      TUTTI_UNROLL
      for (std::uint32_t s = 0; s < kMost; ++s) {
        if (s < op.sources) v[s] = load_any(from[s] + at, left);
      }
      const device::Vec16 result = R::reduce(v, static_cast<int>(op.sources), spec);
      for (std::uint32_t t = 0; t < op.targets; ++t) {
        store_any(address(op, op.sources + t) + at, result, left);
      }
    });
  }

  TUTTI_DEVICE void average(const DeviceOp& op) const {
    cuda::ReduceSpec spec = args_.spec;
    spec.op = ReduceOp::kAvg;
    reduce(op, spec);
  }

  TUTTI_DEVICE void pack(const DeviceOp& op) const {
    const std::byte* from = op.sources == 0 ? nullptr : address(op, 0);
    for_share(op, [&](std::uint64_t at, std::uint64_t left) {
      device::Vec16 v{{0, 0, 0, 0}};
      if (from != nullptr) v = load_any(from + at, left);
      for (std::uint32_t t = 0; t < op.targets; ++t) {
        store_packets(packets(op, op.sources + t) + at / 4, v, packets_in(left), flag_);
      }
    });
  }

  // Packets to where they are wanted, packed or not.
  TUTTI_DEVICE void pass_on(const DeviceOp& op) {
    const std::uint64_t* from = packets(op, 0);
    const int peer = operand(op, 0).peer;
    for_share(op, [&](std::uint64_t at, std::uint64_t left) {
      if (failed_) return;
      const int count = packets_in(left);
      PacketWords p = load_packets(from + at / 4, count);
      if (op.code != DeviceCode::kCopyPackets && !packets_arrived(p, count, flag_) && !await(peer, [&] {
            p = load_packets(from + at / 4, count);
            return packets_arrived(p, count, flag_);
          })) {
        return;
      }
      if (op.code == DeviceCode::kUnpack) return store_any(address(op, 1) + at, payload_of(p), left);
      for (std::uint32_t t = 0; t < op.targets; ++t) store_words(packets(op, 1 + t) + at / 4, p, count);
    });
  }

  // All packets of an item are polled together: their latencies overlap.
  TUTTI_DEVICE void fold(const DeviceOp& op) {
    const std::uint32_t waited = op.sources - 1;
    for_share(op, [&](std::uint64_t at, std::uint64_t left) {
      if (failed_) return;
      const int count = packets_in(left);
      device::Vec16 v[kMost];
      const device::Vec16 plain = load_any(address(op, waited) + at, left);
      std::uint32_t missing = (1u << waited) - 1;
      const auto poll = [&] {
        PacketWords p[kMost];
        TUTTI_UNROLL
        for (std::uint32_t s = 0; s < kMost; ++s) {
          if (missing >> s & 1) p[s] = load_packets(packets(op, s) + at / 4, count);
        }
        TUTTI_UNROLL
        for (std::uint32_t s = 0; s < kMost; ++s) {
          if ((missing >> s & 1) == 0 || !packets_arrived(p[s], count, flag_)) continue;
          v[s] = payload_of(p[s]);
          missing &= ~(1u << s);
        }
        // For the record of a failure: any that is missing.
        for (std::uint32_t s = 0; s < waited; ++s) {
          if (missing >> s & 1) awaited_.peer = operand(op, s).peer;
        }
        return missing == 0;
      };
      if (!poll() && !await(awaited_.peer, poll)) return;
      TUTTI_UNROLL
      for (std::uint32_t s = 0; s < kMost; ++s) {
        if (s == waited) v[s] = plain;
      }
      const device::Vec16 result = R::reduce(v, static_cast<int>(op.sources), args_.spec);
      store_any(address(op, op.sources) + at, result, left);
      for (std::uint32_t t = 1; t < op.targets; ++t) {
        store_packets(packets(op, op.sources + t) + at / 4, result, count, flag_);
      }
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
