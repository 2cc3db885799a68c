// One thread block of a plan that was compiled (emit.h): the operations of its straight lines, with sizes, offsets and
// numbers of operands as constants.
//
// It does what the interpreter (interpreter.cuh) does with the same records: the same words, packets, counts, joins and
// memory orders. So ranks that run the one and ranks that run the other meet in one call, and a rank may change from
// call to call. What differs is inside of a block:
// - Counts of words are read together at the start and written at the end, so no signal waits for its number.
// - A lane takes several items at once: all their loads, or all their packets of all sources, are under way together.
// - A lane's first item of an input that packets are made of, or that is copied, is loaded before the call begins.
// - Scratch is known to be aligned; of the caller's tensors it is found out where they are used.
//
// Thread rule: one block's.
#pragma once

#include "executor/cuda/compiled_args.h"
#include "executor/cuda/compiled_operands.cuh"
#include "executor/cuda/plain_items.cuh"
#include "executor/cuda/plan_wait.cuh"

namespace tutti::executor {

// R: as of PlanBlock. kWorkers: lanes of a thread block, of all members if it is a cluster. kCounts: words that a block
// raises or awaits, at most. kDivisor: of an average.
template <class R, class Team, int kWorkers, int kCounts, int kDivisor>
class CompiledBlock {
 public:
  TUTTI_DEVICE CompiledBlock(const Team& team, const device::Control& control, const CompiledArgs& args)
      : team_(team), control_(control), args_(args) {}

  TUTTI_DEVICE static void fetch() {}  // nothing: all that never changes is code

 protected:
  // Before the call: all threads, before a barrier of the block that the rest comes after.

  TUTTI_DEVICE int number() const { return team_.block(); }
  TUTTI_DEVICE std::uint64_t behind(int first) const { return static_cast<std::uint64_t>(number() - first); }
  TUTTI_DEVICE void begin() {
    invocation_ = device::load_relaxed(invocations() + number());
    flag_ = static_cast<std::uint32_t>(invocation_ % 0xffffffffu) + 1;
    half_ = invocation_ & 1;
  }
  // Counts [first, first + many) of this block lie at `offset` of the rank's own memory.
  TUTTI_DEVICE void read_counts(int first, int many, std::uint64_t offset) {
#if defined(__CUDA_ARCH__)
    for (int i = static_cast<int>(threadIdx.x); i < many; i += static_cast<int>(blockDim.x)) {
#else
    for (int i = 0; i < many; ++i) {
#endif
      counts()[first + i] = device::load_relaxed(slot(offset) + i);
    }
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE void load_early(Bytes<kBytes> /*bytes*/, Place source) {
    const std::uint64_t at = first_item();
    if (team_.is_worker() && at < kBytes) early_ = load_item(source, at, left<kBytes>(at));
  }
  // For what becomes packets.
  template <std::uint64_t kBytes>
  TUTTI_DEVICE void load_pieces_early(Bytes<kBytes> /*bytes*/, Place source) {
    const PacketShare mine = share();
    if (team_.is_worker() && mine.first < kBytes) early_ = plain<kBytes>(source, item<kBytes>(mine.first, mine));
  }

  // The call. Workers only.

  TUTTI_DEVICE void start(const device::Awaited& awaited) { awaited_ = awaited; }
  // The block has used `used` of each of these.
  TUTTI_DEVICE void write_counts(int first, int many, std::uint64_t offset, std::uint64_t used) {
    for (int i = team_.worker(); i < many; i += team_.workers()) {
      device::store_relaxed(slot(offset) + i, counts()[first + i] + used);
    }
  }
  // False on all lanes or none: something did not come.
  TUTTI_DEVICE bool finish() {
    if (team_.worker() == 0) device::store_relaxed(invocations() + number(), invocation_ + 1);
    return true;
  }
  // The block's end where lanes have failed. What a lane has waited for is recorded here and not where it waits: around
  // a call there, all registers would be spilled.
  TUTTI_DEVICE bool give_up() const {
    if (failed_) record_failure(control_, awaited_);
    return false;
  }
  // All lanes have ended what came before. True on all or none: some lane has failed, leave.
  TUTTI_DEVICE bool join_failed() { return team_.any_worker(failed_); }
  TUTTI_DEVICE static void fence() { fence_packets(); }

  // Where things lie.

  TUTTI_DEVICE Place memory(int rank, std::uint64_t offset) const {
    return {args_.memory[rank] + offset, offset % 16 == 0};
  }
  // Of two halves, `half` bytes apart, that of this invocation.
  TUTTI_DEVICE Place memory(int rank, std::uint64_t offset, std::uint64_t half) const {
    return {args_.memory[rank] + offset + half_ * half, offset % 16 == 0 && half % 16 == 0};
  }
  TUTTI_DEVICE Place input(int block, std::uint64_t offset = 0) const { return user(block, offset); }
  TUTTI_DEVICE Place output(int block, std::uint64_t offset = 0) const { return user(kUserBlocks + block, offset); }
  // Of another rank, where it lies for all.
  TUTTI_DEVICE Place peer_input(int rank, int block, std::uint64_t offset = 0) const {
    return peer(rank, block, offset);
  }
  TUTTI_DEVICE Place peer_output(int rank, int block, std::uint64_t offset = 0) const {
    return peer(device::kMaxRanks + rank, block, offset);
  }
  TUTTI_DEVICE static Packets packets_of_rank(int writer, Place place) { return {place, writer}; }
  // In the memory of a rank, and in that of this rank alone.
  TUTTI_DEVICE Word word_of_rank(int rank, std::uint64_t offset, int count, std::uint64_t add, int peer) const {
    return {args_.memory[rank] + offset, count, add, peer};
  }
  TUTTI_DEVICE Word own_word(std::uint64_t offset, int count, std::uint64_t add) const {
    return {args_.state + offset, count, add, control_.rank};
  }

  // Operations.

  template <class... Words>
  TUTTI_DEVICE void signal(Words... words) {
    if (failed_) return;
    for (int i = team_.worker(); i < static_cast<int>(sizeof...(words)); i += team_.workers()) {
      const Word mine = pick(i, words...);
      // release: with the join before it, all that the block has written and read; pairs with the acquire in wait().
      device::store_release(reinterpret_cast<std::uint64_t*>(mine.at), counts()[mine.count] + mine.add);
    }
  }

  // One lane a word, so that all are polled at once.
  template <class... Words>
  TUTTI_DEVICE void wait(Words... words) {
    if (failed_) return;
    for (int i = team_.worker(); i < static_cast<int>(sizeof...(words)); i += team_.workers()) {
      const Word mine = pick(i, words...);
      const auto* at = reinterpret_cast<const std::uint64_t*>(mine.at);
      const std::uint64_t wanted = counts()[mine.count] + mine.add;
      awaited_.peer = mine.peer;
      if (!await([&] { return device::load_relaxed(at) >= wanted; })) return;
      // acquire: pairs with the release in signal(); the join after it passes it on to the other lanes.
      static_cast<void>(device::load_acquire(at));
    }
  }

  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void copy(Bytes<kBytes> /*bytes*/, Place source, List<Place, kTargets> targets) const {
    if (failed_) return;
    move<kBytes, 8>(
        source.aligned && all_aligned(targets),
        [&](auto item, std::uint64_t at, std::uint64_t rest) { return item.load(source.at + at, rest); },
        [&](auto item, std::uint64_t at, std::uint64_t rest, const device::Vec16& v) {
          TUTTI_UNROLL
          for (int t = 0; t < kTargets; ++t) item.store(targets.items[t].at + at, v, rest);
        });
  }
  // The first item of each lane is what load_early() has fetched.
  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void copy_early(Bytes<kBytes> /*bytes*/, Place source, List<Place, kTargets> targets) const {
    for (std::uint64_t at = first_item(); !failed_ && at < kBytes; at += stride()) {
      const device::Vec16 v = at == first_item() ? early_ : load_item(source, at, left<kBytes>(at));
      TUTTI_UNROLL
      for (int t = 0; t < kTargets; ++t) store_item(targets.items[t], at, v, left<kBytes>(at));
    }
  }

  template <std::uint64_t kBytes, int kSources, int kTargets>
  TUTTI_DEVICE void reduce(Bytes<kBytes> /*bytes*/, List<Place, kSources> sources,
                           List<Place, kTargets> targets) const {
    reduce_as<kBytes>(ReduceOp::kSum, sources, targets);
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE void average(Bytes<kBytes> /*bytes*/, Place source, List<Place, 1> target) const {
    reduce_as<kBytes>(ReduceOp::kAvg, from(source), target);
  }

  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void pack(Bytes<kBytes> /*bytes*/, Place source, List<Place, kTargets> targets) const {
    if (failed_) return;
    if (source.aligned) {
      pack_items<kBytes, at_once<kBytes>(4)>(source, targets);
    } else {
      pack_items<kBytes, 1>(source, targets);
    }
  }
  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void pack_early(Bytes<kBytes> /*bytes*/, Place source, List<Place, kTargets> targets) const {
    const PacketShare mine = share();
    for (std::uint64_t at = mine.first; !failed_ && at < kBytes; at += stride()) {
      const PacketItem one = item<kBytes>(at, mine);
      put_packets(targets, one, words_of(at == mine.first ? early_ : plain<kBytes>(source, one), flag_));
    }
  }
  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void pad(Bytes<kBytes> /*bytes*/, List<Place, kTargets> targets) const {
    const PacketShare mine = share();
    for (std::uint64_t at = mine.first; !failed_ && at < kBytes; at += stride()) {
      put_packets(targets, item<kBytes>(at, mine), words_of(device::Vec16{{0, 0, 0, 0}}, flag_));
    }
  }

  // Packets to packets, when they are there, or (copy_packets) as they are.
  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void forward(Bytes<kBytes> /*bytes*/, Packets source, List<Place, kTargets> targets) {
    take<kBytes, true>(from(source), [&](const PacketItem& one, const List<PacketWords, 1>& p) {
      put_packets(targets, one, p.items[0]);
    });
  }
  template <std::uint64_t kBytes, int kTargets>
  TUTTI_DEVICE void copy_packets(Bytes<kBytes> /*bytes*/, Place source, List<Place, kTargets> targets) {
    take<kBytes, false>(from(Packets{source, 0}), [&](const PacketItem& one, const List<PacketWords, 1>& p) {
      put_packets(targets, one, p.items[0]);
    });
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE void await_packets(Bytes<kBytes> /*bytes*/, Packets source) {
    take<kBytes, true>(from(source), [](const PacketItem&, const List<PacketWords, 1>&) {});
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE void unpack(Bytes<kBytes> /*bytes*/, Packets source, Place target) {
    take<kBytes, true>(from(source), [&](const PacketItem& one, const List<PacketWords, 1>& p) {
      put_plain<kBytes>(target, one, payload_of(p.items[0]));
    });
  }
  // All sources in order; to `target`, and in packets to all of `targets`.
  template <std::uint64_t kBytes, int kPackets, int kPlain, int kTargets>
  TUTTI_DEVICE void fold(Bytes<kBytes> /*bytes*/, Folded<kPackets, kPlain> sources, Place target,
                         List<Place, kTargets> targets) {
    using Sources = Folded<kPackets, kPlain>;
    take<kBytes, true>(
        sources.packets,
        [&](const PacketItem& one) {
          if constexpr (kPlain >= 0) {
            return plain<kBytes>(sources.plain, one);
          } else {
            return Nothing{};
          }
        },
        [&](const PacketItem& one, const List<PacketWords, kPackets>& p, const auto& own) {
          device::Vec16 v[kMost];
          TUTTI_UNROLL
          for (int s = 0; s < kPackets; ++s) v[Sources::source(s)] = payload_of(p.items[s]);
          if constexpr (kPlain >= 0) v[kPlain] = own;
          const device::Vec16 result = R::reduce(v, Sources::kCount, spec(ReduceOp::kSum));
          put_plain<kBytes>(target, one, result);
          put_packets(targets, one, words_of(result, flag_));
        });
  }

 private:
  static constexpr int kMost = device::kMaxRanks;  // sources at a time

  // This lane's items: first_item(), and every stride() bytes on.
  TUTTI_DEVICE std::uint64_t first_item() const { return static_cast<std::uint64_t>(team_.worker()) * 16; }
  TUTTI_DEVICE std::uint64_t stride() const {
    return static_cast<std::uint64_t>(Team::kOnDevice ? kWorkers : team_.workers()) * 16;
  }
  // Bytes from an item to the end; of whole items only that they are whole counts, and that is a constant.
  template <std::uint64_t kBytes>
  TUTTI_DEVICE static std::uint64_t left(std::uint64_t at) {
    return kBytes % 16 == 0 ? 16 : kBytes - at;
  }
  // How many items a lane takes at once: `most`, or all that it has.
  template <std::uint64_t kBytes>
  static constexpr int at_once(int most) {
    constexpr std::uint64_t kTurns = (kBytes + kWorkers * 16 - 1) / (kWorkers * 16);
    return kTurns < static_cast<std::uint64_t>(most) ? static_cast<int>(kTurns) : most;
  }

  // load(item, offset, rest) of several items, then store(item, offset, rest, value) of each.
  template <std::uint64_t kBytes, int kAtOnce, class Load, class Store>
  TUTTI_DEVICE void move(bool aligned, Load load, Store store) const {
    if (aligned) {
      move_items<kBytes, at_once<kBytes>(kAtOnce)>(Aligned{}, load, store);
    } else {
      move_items<kBytes, 1>(AnyAlignment{}, load, store);
    }
  }
  template <std::uint64_t kBytes, int kAtOnce, class Item, class Load, class Store>
  TUTTI_DEVICE void move_items(Item item, Load load, Store store) const {
    TUTTI_ROLLED
    for (std::uint64_t first = first_item(); first < kBytes; first += kAtOnce * stride()) {
      device::Vec16 v[kAtOnce];
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) v[u] = load(item, at, left<kBytes>(at));
      }
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) store(item, at, left<kBytes>(at), v[u]);
      }
    }
  }

  template <std::uint64_t kBytes, int kSources, int kTargets>
  TUTTI_DEVICE void reduce_as(ReduceOp op, const List<Place, kSources>& sources,
                              const List<Place, kTargets>& targets) const {
    if (failed_) return;
    // Not more loads under way than there are registers for.
    constexpr int kAtOnce = kSources <= 2 ? 4 : kSources <= 4 ? 2 : 1;
    move<kBytes, kAtOnce>(
        all_aligned(sources) && all_aligned(targets),
        [&](auto item, std::uint64_t at, std::uint64_t rest) {
          device::Vec16 v[kMost];
          TUTTI_UNROLL
          for (int s = 0; s < kSources; ++s) v[s] = item.load(sources.items[s].at + at, rest);
          return R::reduce(v, kSources, spec(op));
        },
        [&](auto item, std::uint64_t at, std::uint64_t rest, const device::Vec16& v) {
          TUTTI_UNROLL
          for (int t = 0; t < kTargets; ++t) item.store(targets.items[t].at + at, v, rest);
        });
  }

  // Of operations on packets: this lane's share, its items, and their plain bytes.
  TUTTI_DEVICE PacketShare share() const {
    if constexpr (requires { R::kWide; }) return packet_share(team_, R::kWide);
    return packet_share(team_, false);
  }
  // Whether every piece of every item is whole: also those that warps have beside each other.
  template <std::uint64_t kBytes>
  static constexpr bool kWhole = kBytes % (32 * kItemBytes) == 0;
  template <std::uint64_t kBytes>
  TUTTI_DEVICE static PacketItem item(std::uint64_t at, const PacketShare& share) {
    return packet_item<kWhole<kBytes>>(at, share, kBytes);
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE static device::Vec16 plain(const Place& place, const PacketItem& item) {
    return load_pieces<kWhole<kBytes>>(place.at, item, kBytes, place.aligned);
  }
  template <std::uint64_t kBytes>
  TUTTI_DEVICE static void put_plain(const Place& place, const PacketItem& item, const device::Vec16& v) {
    store_pieces<kWhole<kBytes>>(place.at, item, v, kBytes, place.aligned);
  }
  template <int kTargets>
  TUTTI_DEVICE static void put_packets(const List<Place, kTargets>& targets, const PacketItem& item,
                                       const PacketWords& p) {
    TUTTI_UNROLL
    for (int t = 0; t < kTargets; ++t) {
      store_words(reinterpret_cast<std::uint64_t*>(targets.items[t].at), item, p, targets.items[t].aligned);
    }
  }
  template <std::uint64_t kBytes, int kAtOnce, int kTargets>
  TUTTI_DEVICE void pack_items(const Place& source, const List<Place, kTargets>& targets) const {
    const PacketShare mine = share();
    TUTTI_ROLLED
    for (std::uint64_t first = mine.first; first < kBytes; first += kAtOnce * stride()) {
      device::Vec16 v[kAtOnce];
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) v[u] = plain<kBytes>(source, item<kBytes>(at, mine));
      }
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) put_packets(targets, item<kBytes>(at, mine), words_of(v[u], flag_));
      }
    }
  }

  struct Nothing {};
  template <std::uint64_t kBytes, bool kAwait, int kSources, class Then>
  TUTTI_DEVICE void take(const List<Packets, kSources>& sources, Then then) {
    take<kBytes, kAwait>(
        sources, [](const PacketItem&) { return Nothing{}; },
        [&](const PacketItem& one, const List<PacketWords, kSources>& p, Nothing) { then(one, p); });
  }
  // then(item, packets of all sources, before(item)) for each of this lane's items, when they are there. Several items
  // and all sources are polled together, and what is loaded before is under way meanwhile: their latencies overlap.
  template <std::uint64_t kBytes, bool kAwait, int kSources, class Before, class Then>
  TUTTI_DEVICE void take(const List<Packets, kSources>& sources, Before before, Then then) {
    constexpr int kAtOnce = at_once<kBytes>(kSources == 1 ? 4 : kSources <= 3 ? 2 : 1);
    const PacketShare mine = share();
    TUTTI_ROLLED
    for (std::uint64_t first = mine.first; !failed_ && first < kBytes; first += kAtOnce * stride()) {
      List<PacketWords, kSources> p[kAtOnce];
      decltype(before(PacketItem{})) own[kAtOnce] = {};
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) own[u] = before(item<kBytes>(at, mine));
      }
      const auto poll = [&] {
        bool all = true;
        TUTTI_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
          if (at >= kBytes) continue;
          TUTTI_UNROLL
          for (int s = 0; s < kSources; ++s) {
            const Place& place = sources.items[s].place;
            p[u].items[s] =
                load_packets(reinterpret_cast<const std::uint64_t*>(place.at), item<kBytes>(at, mine), place.aligned);
          }
        }
        TUTTI_UNROLL
        for (int u = 0; u < kAtOnce; ++u) {
          const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
          if (at >= kBytes || !kAwait) continue;
          TUTTI_UNROLL
          for (int s = 0; s < kSources; ++s) {
            if (packets_arrived(p[u].items[s], item<kBytes>(at, mine), flag_)) continue;
            all = false;
            awaited_.peer = sources.items[s].writer;
          }
        }
        return all;
      };
      if (!await(poll)) return;
      TUTTI_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const std::uint64_t at = first + static_cast<std::uint64_t>(u) * stride();
        if (at < kBytes) then(item<kBytes>(at, mine), p[u], own[u]);
      }
    }
  }

  template <class Ready>
  TUTTI_DEVICE bool await(Ready ready) {
    failed_ = !wait_in_plan(control_, awaited_, ready);
    return !failed_;
  }

  // words[i]
  template <class... Words>
  TUTTI_DEVICE static Word pick(int i, const Word& first, const Words&... others) {
    Word mine = first;
    int k = 0;
    (static_cast<void>(++k == i ? static_cast<void>(mine = others) : static_cast<void>(0)), ...);
    return mine;
  }

  // Looked at for each place: all buffers' addresses, at the start, would be many words of parameters to fetch.
  TUTTI_DEVICE static Place at_any(std::byte* at) { return {at, device::aligned(at, 16)}; }
  TUTTI_DEVICE Place user(int index, std::uint64_t offset) const { return at_any(args_.user[index] + offset); }
  TUTTI_DEVICE Place peer(int index, int block, std::uint64_t offset) const {
    return at_any(args_.peers.block(index, block) + offset);
  }
  TUTTI_DEVICE std::uint64_t* invocations() const { return reinterpret_cast<std::uint64_t*>(args_.state); }
  TUTTI_DEVICE std::uint64_t* slot(std::uint64_t offset) const {
    return reinterpret_cast<std::uint64_t*>(args_.state + offset);
  }
  // Of a sum's code the operation is known; only an average is told.
  TUTTI_DEVICE static cuda::ReduceSpec spec(ReduceOp op) {
    cuda::ReduceSpec spec;
    spec.op = op;
    spec.divisor = kDivisor;
    return spec;
  }

#if defined(__CUDA_ARCH__)
  // Of the block: registers are for data.
  __device__ __forceinline__ static std::uint64_t* counts() {
    __shared__ std::uint64_t counts[kCounts > 0 ? kCounts : 1];
    return counts;
  }
#else
  std::uint64_t* counts() { return counts_; }
  const std::uint64_t* counts() const { return counts_; }
  std::uint64_t counts_[kCounts > 0 ? kCounts : 1] = {};
#endif

  const Team& team_;
  const device::Control& control_;
  const CompiledArgs& args_;
  device::Awaited awaited_{};
  device::Vec16 early_{{0, 0, 0, 0}};
  std::uint64_t invocation_ = 0;
  std::uint64_t half_ = 0;
  std::uint32_t flag_ = 0;
  bool failed_ = false;
};

}  // namespace tutti::executor
