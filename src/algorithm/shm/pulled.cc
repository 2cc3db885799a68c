// Every rank reads what it needs out of its peers' tensors by the kernel: one copy, no staging (process_vm_readv, as
// Open MPI's and MPICH's "cross-memory attach" for messages).
//
// Steps: tell where the blocks lie; read; one round of "done" so that no rank leaves while another still reads its
// memory. Bytes a rank: what it needs, once. Latency: two line transfers and a system call a block. The kernel counts
// who reads a page, so one that several ranks read at once takes each of them longer: blocks that all ranks need are
// read so among two ranks only.
//
// Of some memory the kernel gives others nothing: secret memory, what some drivers map. Who finds its own to be such
// tells that instead of addresses, and all go through staging.
#include <algorithm>
#include <cstring>

#include "algorithm/shm/shm_algorithm.h"
#include "algorithm/shm/shm_algorithms.h"
#include "base/collective_traits.h"
#include "base/cross_memory.h"

namespace tutti {
namespace {

// From these bytes on reading so was faster than staging on 16 cores (docs/performance.md): of a block, and of all
// blocks of a rank together.
constexpr std::size_t kLeastBlock = 32 << 10, kLeastBroadcast = 64 << 10;
constexpr std::size_t kLeastBlockToAll = 16 << 10, kLeastToAll = 128 << 10;
constexpr std::size_t kLeastScatter = 1 << 20, kLeastScatterOfFew = 256 << 10;
constexpr int kFew = 3;  // ranks
constexpr std::size_t kPiece = 16 << 20;
// No address of a block.
constexpr std::uint64_t kUnreadable = 1;
// A rank whose memory is gone is dead, or is about to say why it has given up.
constexpr std::chrono::milliseconds kLastWord{2000};

class Pulled final : public ShmAlgorithm {
 public:
  explicit Pulled(std::shared_ptr<const Algorithm> staged)
      : ShmAlgorithm(staged->collective(), "pulled",
                     "every rank reads its peers' tensors by the kernel, with no staging"),
        staged_(std::move(staged)) {}

  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = refuse_hosts(shape)) return reason;
    if (shape.uneven) return "needs blocks of equal size";
    if (!traits_of(shape.collective).input_blocks && shape.ranks > 2) return "several ranks would read the same memory";
    if (shape.crowded) return "more ranks than cores";
    if (is_small(shape)) return "the blocks are so small that staging is faster";
    if (!shape.reads_across) return "the ranks cannot read each other's memory by the kernel, or it does not pay here";
    return nullptr;
  }

  Outcome run(const Call& call, CallContext& c) const noexcept override {
    HostChannel& host = *c.host;
    const std::uint64_t told = host.step_base() + 1;
    tell(call, c);
    host.publish(StepLane::kFilled, told);
    if (Outcome outcome = host.await_step_all(StepLane::kFilled, told, c.deadline); !outcome.ok()) return outcome;
    for (int r = 0; r < c.size; ++r) {
      if (host.addresses(r)[c.rank] != kUnreadable) continue;
      host.advance_steps(1);
      return staged_->run(call, c);
    }
    const bool blocks = traits_of(call.collective).output_blocks;
    if (gives(call, c.rank))
      copy_unless_same(call.output.data(blocks ? c.rank : 0), block_for(call, c.rank), bytes(call));
    for (int i = 1; i < c.size; ++i) {
      const int peer = (c.rank + i) % c.size;
      if (!gives(call, peer)) continue;
      const Outcome outcome = read(c, peer, call.output.data(blocks ? peer : 0), bytes(call));
      if (!outcome.ok()) return outcome;
    }
    return finish(c);
  }

 private:
  static bool is_small(const CallShape& shape) noexcept {
    const std::size_t all = shape.bytes * static_cast<std::size_t>(shape.ranks);
    switch (shape.collective) {
      case Collective::kBroadcast:
        return shape.bytes < kLeastBroadcast;
      case Collective::kScatter:
        return all < (shape.ranks <= kFew ? kLeastScatterOfFew : kLeastScatter);
      case Collective::kAllToAll:
        return shape.bytes < kLeastBlockToAll || all < kLeastToAll;
      default:
        return shape.bytes < kLeastBlock;
    }
  }
  static bool gives(const Call& call, int rank) noexcept { return !has_root(call.collective) || rank == call.root; }
  static const std::byte* block_for(const Call& call, int reader) noexcept {
    return call.input.data(traits_of(call.collective).input_blocks ? reader : 0);
  }
  static std::size_t bytes(const Call& call) noexcept { return call.output.size(0); }

  static void tell(const Call& call, CallContext& c) noexcept {
    std::uint64_t* const addresses = c.host->addresses(c.rank);
    const bool gives_any = gives(call, c.rank);
    const bool readable = !gives_any || is_readable(call, c.size);
    for (int r = 0; r < c.size; ++r) {
      addresses[r] = !readable ? kUnreadable : gives_any ? reinterpret_cast<std::uintptr_t>(block_for(call, r)) : 0;
    }
  }
  // Both ends of each tensor, which lies in one mapping: of all blocks in one piece, or each.
  static bool is_readable(const Call& call, int ranks) noexcept {
    const int blocks = traits_of(call.collective).input_blocks ? ranks : 1;
    const int each = call.input.pointers != nullptr ? 1 : blocks;
    for (int b = 0; b < blocks; b += each) {
      if (!is_cross_readable(call.input.data(b), call.input.data(b + each - 1) + bytes(call) - 1)) return false;
    }
    return true;
  }
  // In pieces, between which a peer's death, an abort and the deadline are looked at.
  static Outcome read(CallContext& c, int peer, std::byte* to, std::size_t bytes) noexcept {
    const std::uint64_t from = c.host->addresses(peer)[c.rank];
    for (std::size_t done = 0; done < bytes; done += kPiece) {
      if (done != 0) {
        if (Outcome outcome = c.host->check(peer); !outcome.ok()) return outcome;
        if (c.deadline.expired()) return {Status::kTimeout, peer};
      }
      const int error = c.host->read(peer, to + done, from + done, std::min(kPiece, bytes - done));
      if (error != 0) return unread(c, peer, error);
    }
    return kOkOutcome;
  }
  static Outcome unread(CallContext& c, int peer, int error) noexcept {
    Deadline last = Deadline::after(std::min(kLastWord, c.deadline.timeout()));
    const Outcome end = c.host->await_step(peer, StepLane::kDrained, UINT64_MAX, last);
    if (end.status != Status::kTimeout) return end;
    try {
      c.detail = std::string("its memory cannot be read, or this rank's not be written: ") + std::strerror(error);
    } catch (const std::bad_alloc&) {  // then the error says less
    }
    return {Status::kPeerFailed, peer};
  }

  const std::shared_ptr<const Algorithm> staged_;
};

}  // namespace

AlgorithmList pulled_algorithms() {
  AlgorithmList list;
  for (const auto& staged : staged_algorithms()) {
    const Collective c = staged->collective();
    if (c == Collective::kAllToAll || c == Collective::kScatter || c == Collective::kAllGather ||
        c == Collective::kBroadcast) {
      list.push_back(std::make_shared<Pulled>(staged));
    }
  }
  return list;
}

}  // namespace tutti
