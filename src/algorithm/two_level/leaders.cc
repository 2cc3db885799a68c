// Algorithms in which one rank of each host speaks for all of them: for messages where the number of messages counts.
//
// Every rank announces the call with its payload beside the announcement, as in shm/slots.cc. The leader of a host,
// its first rank, takes part in the call among the hosts, puts the result where its payload was, and publishes it; the
// others take it from there. With h hosts, k ranks a host, a message of B bytes, latency a a message:
//
//   barrier      log2(h) a, and two line transfers
//   all_reduce   that of the algorithm over messages for h ranks, of B bytes; two line transfers; the leader reads k B.
//                Partial sums of narrow types would be rounded: of these the leaders exchange all inputs, k B a host.
//   broadcast    that of the algorithm over messages for h ranks, of B bytes; on the root's host the root is the
//                leader, and the others take its payload at once
//   all_gather   that of the algorithm over messages for h ranks, of k B bytes a host; the leader hands out all n B
//
// Source: Karonis et al., "Exploiting hierarchy in parallel computer networks to optimize collective operation
// performance", IPDPS 2000.
//
// Ranks take the result before they announce a call that uses the slot again, so nothing is awaited at the end.
#include <algorithm>
#include <span>

#include "algorithm/shm/shm_algorithm.h"
#include "algorithm/two_level/two_level_algorithm.h"
#include "algorithm/two_level/two_level_algorithms.h"

namespace tutti {
namespace {

constexpr std::size_t kMostBytes = 32 * 1024;     // of a slot
constexpr std::size_t kMostGathered = 64 * 1024;  // inputs of all ranks that a leader brings together

class LeadersAlgorithm : public TwoLevelAlgorithm {
 public:
  explicit LeadersAlgorithm(Collective collective)
      : TwoLevelAlgorithm(collective, "leaders",
                          "one rank a host makes the call with those of the other hosts, through slots on its own") {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = TwoLevelAlgorithm::refusal(shape)) return reason;
    return shape.bytes > kMostBytes ? "a rank's payload is larger than a slot of 32 KB" : nullptr;
  }
  bool announces() const noexcept final { return true; }

 protected:
  static Outcome announce(CallContext& c, const void* payload, std::size_t bytes) noexcept {
    HostChannel* host = c.hosts->host;
    if (host == nullptr) return kOkOutcome;
    if (Outcome outcome = host->begin(c.record, c.deadline); !outcome.ok()) return of_group(c, outcome);
    c.slot_writer.copy(host->payload_area(bytes), payload, bytes);
    host->announce();
    return kOkOutcome;
  }
  static Outcome await_announcements(CallContext& c) noexcept {
    return c.hosts->host == nullptr ? kOkOutcome : of_group(c, c.hosts->host->await_all(c.deadline));
  }
  // The leader's end of a call: the others find `bytes` of `result`.
  static void hand_out(CallContext& c, const std::byte* result, std::size_t bytes) noexcept {
    HostChannel* host = c.hosts->host;
    if (host == nullptr) return;
    c.slot_writer.copy(host->payload_area(bytes), result, bytes, host->ranks() - 1);
    host->publish(StepLane::kFilled, host->step_base() + 1);
    host->advance_steps(1);
  }
  // The others' end, and what it takes of the call's memory.
  static std::size_t memory_to_take() noexcept { return NetCall::bytes_for(0); }
  static Outcome take(CallContext& c, std::byte* result, std::size_t bytes) {
    HostChannel& host = *c.hosts->host;
    if (Outcome outcome = host.await(0, c.deadline); !outcome.ok()) return of_group(c, outcome);
    if (Outcome outcome = await_filled(c, 0, host.step_base() + 1); !outcome.ok()) return outcome;
    if (bytes != 0) cpu::copy_from_peer(result, host.peer_payload(0, bytes), bytes);
    host.advance_steps(1);
    return kOkOutcome;
  }
};

// The input of the rank with `place` on this host, which its leader asks for.
const std::byte* input_of(const Call& call, const CallContext& c, int place) noexcept {
  if (place == c.hosts->place()) return call.input.data(0);
  return c.hosts->host->peer_payload(place, call.input.size(0));
}

// The inputs of all ranks, host by host, as a leader brings them together.
class Inputs {
 public:
  // `bytes`: of one rank's input.
  Inputs(const CallContext& c, std::size_t bytes)
      : bytes_(bytes),
        blocks_(c.memory.take<void*>(hosts_of(c))),
        sizes_(c.memory.take<std::size_t>(hosts_of(c))),
        by_rank_(c.memory.take<const void*>(static_cast<std::size_t>(c.size))) {
    std::byte* at = c.memory.take<std::byte>(bytes * static_cast<std::size_t>(c.size)).data();
    for (std::size_t h = 0; h < hosts_of(c); ++h) {
      const std::vector<int>& ranks = c.hosts->ranks.on(static_cast<int>(h));
      blocks_[h] = at;
      sizes_[h] = bytes * ranks.size();
      for (const int r : ranks) {
        by_rank_[static_cast<std::size_t>(r)] = at;
        at += bytes;
      }
    }
  }

  // Of the call's memory, with what bring() takes.
  static std::size_t memory(const Call& call, const CallContext& c, const TwoLevelExchange& all_gather) noexcept {
    const auto ranks = static_cast<std::size_t>(c.size);
    return CallMemory::bytes_of<void*>(hosts_of(c)) + CallMemory::bytes_of<std::size_t>(hosts_of(c)) +
           CallMemory::bytes_of<const void*>(ranks) + CallMemory::bytes_of<std::byte>(call.input.size(0) * ranks) +
           all_gather.memory(gather_of(call), 0, c);
  }

  Outcome bring(const Call& call, CallContext& c, const TwoLevelExchange& all_gather) {
    const auto mine = static_cast<std::size_t>(c.hosts->ranks.host_of(c.hosts->rank));
    for (std::size_t i = 0; i < c.hosts->here().size(); ++i) {
      cpu::copy(static_cast<std::byte*>(blocks_[mine]) + i * bytes_, input_of(call, c, static_cast<int>(i)), bytes_);
    }
    Call part = gather_of(call);
    part.input = Blocks::single(blocks_[mine], sizes_[mine]);
    part.output = Blocks::list(blocks_.data(), sizes_.data());
    AmongHosts among(c, [](int) { return 0; });
    return all_gather.run(part, 0, among.context());
  }

  std::span<const void* const> by_rank() const noexcept { return by_rank_; }

 private:
  static std::size_t hosts_of(const CallContext& c) noexcept {
    return static_cast<std::size_t>(c.hosts->ranks.hosts());
  }
  // But for its blocks.
  static Call gather_of(const Call& call) noexcept {
    Call part = call;
    part.collective = Collective::kAllGather;
    part.uneven = true;
    return part;
  }

  const std::size_t bytes_;
  const std::span<void*> blocks_;  // by host, and so by leader: hosts are in the order of their first ranks
  const std::span<std::size_t> sizes_;
  const std::span<const void*> by_rank_;
};

class LeadersBarrier final : public LeadersAlgorithm {
 public:
  LeadersBarrier() : LeadersAlgorithm(Collective::kBarrier), exchange_(Collective::kBarrier) {}
  std::size_t memory(const Call& call, const CallContext& c) const noexcept override {
    return memory_to_take() + exchange_.memory(call, 0, c);
  }

 private:
  Outcome execute(const Call& call, CallContext& c) const override {
    if (Outcome outcome = announce(c, nullptr, 0); !outcome.ok()) return outcome;
    if (c.hosts->place() != 0) return take(c, nullptr, 0);
    if (Outcome outcome = await_announcements(c); !outcome.ok()) return outcome;
    AmongHosts among(c, [](int) { return 0; });
    if (Outcome outcome = exchange_.run(call, 0, among.context()); !outcome.ok()) return outcome;
    hand_out(c, nullptr, 0);
    return kOkOutcome;
  }

  TwoLevelExchange exchange_;
};

class LeadersAllReduce final : public LeadersAlgorithm {
 public:
  LeadersAllReduce()
      : LeadersAlgorithm(Collective::kAllReduce), reduce_(Collective::kAllReduce), gather_(Collective::kAllGather) {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = LeadersAlgorithm::refusal(shape)) return reason;
    return rounds_partials(shape.dtype, shape.op) &&
                   shape.bytes > kMostGathered / static_cast<std::size_t>(std::max(1, shape.ranks))
               ? "all inputs together, of a type whose partial sums would be rounded, are too large for the leaders"
               : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& c) const noexcept override {
    const std::size_t bytes = call.input.size(0);
    return memory_to_take() + (rounds_partials(call.dtype, call.op)
                                   ? Inputs::memory(call, c, gather_)
                                   : reduce_.memory(part_of(call, nullptr, bytes), bytes, c));
  }

 private:
  Outcome execute(const Call& call, CallContext& c) const override {
    const std::size_t bytes = call.input.size(0);
    std::byte* output = call.output.data(0);
    if (Outcome outcome = announce(c, call.input.data(0), bytes); !outcome.ok()) return outcome;
    if (c.hosts->place() != 0) return take(c, output, bytes);
    if (Outcome outcome = await_announcements(c); !outcome.ok()) return outcome;
    const bool whole = rounds_partials(call.dtype, call.op);
    const Outcome outcome = whole ? reduce_at_once(call, c) : reduce_in_parts(call, c);
    if (outcome.ok()) hand_out(c, output, bytes);
    return outcome;
  }

  Outcome reduce_in_parts(const Call& call, CallContext& c) const {
    const std::size_t bytes = call.input.size(0);
    const Call part = part_of(call, call.output.data(0), bytes);
    const auto here = static_cast<int>(c.hosts->here().size());
    SourceList sources;
    for (int i = 0; i < here; ++i) sources[static_cast<std::size_t>(i)] = input_of(call, c, i);
    void* target = call.output.data(0);
    cpu::reduce(&target, 1, sources.data(), here, part.count, call.dtype, part.op);
    AmongHosts among(c, [](int) { return 0; });
    if (Outcome outcome = reduce_.run(part, bytes, among.context()); !outcome.ok()) return outcome;
    average(call, call.output.data(0), bytes, c.size);
    return kOkOutcome;
  }

  Outcome reduce_at_once(const Call& call, CallContext& c) const {
    const std::size_t bytes = call.input.size(0);
    Inputs inputs(c, bytes);
    if (Outcome outcome = inputs.bring(call, c, gather_); !outcome.ok()) return outcome;
    reduce_sources(call, call.output.data(0), inputs.by_rank().data(), c.size, bytes);
    return kOkOutcome;
  }

  TwoLevelExchange reduce_, gather_;
};

class LeadersBroadcast final : public LeadersAlgorithm {
 public:
  LeadersBroadcast() : LeadersAlgorithm(Collective::kBroadcast), exchange_(Collective::kBroadcast) {}
  std::size_t memory(const Call& call, const CallContext& c) const noexcept override {
    const std::size_t bytes = call.output.size(0);
    return memory_to_take() + exchange_.memory(part_of(call, nullptr, bytes), bytes, c);
  }

 private:
  Outcome execute(const Call& call, CallContext& c) const override {
    const std::size_t bytes = call.output.size(0);
    std::byte* output = call.output.data(0);
    const GroupPlace& hosts = *c.hosts;
    const bool root = c.rank == call.root;
    const int own_host = hosts.ranks.host_of(hosts.rank), root_host = hosts.ranks.host_of(call.root);
    const int root_place = hosts.ranks.place_of(call.root);
    const auto leader_on = [&](int host) { return host == root_host ? root_place : 0; };
    if (root) copy_unless_same(output, call.input.data(0), bytes);
    if (Outcome outcome = announce(c, output, root ? bytes : 0); !outcome.ok()) return outcome;
    if (hosts.place() != leader_on(own_host)) {
      return own_host == root_host ? take_from_root(c, root_place, output, bytes) : take(c, output, bytes);
    }
    Call part = part_of(call, output, bytes);
    AmongHosts among(c, leader_on);
    part.root = among.place_of(call.root);
    if (Outcome outcome = exchange_.run(part, bytes, among.context()); !outcome.ok()) return outcome;
    if (!root) {
      hand_out(c, output, bytes);
    } else if (hosts.host != nullptr) {
      hosts.host->advance_steps(1);
    }
    return kOkOutcome;
  }

  // On the root's host its payload is there with its announcement.
  static Outcome take_from_root(CallContext& c, int place, std::byte* output, std::size_t bytes) noexcept {
    HostChannel& host = *c.hosts->host;
    if (Outcome outcome = host.await(place, c.deadline); !outcome.ok()) return of_group(c, outcome);
    cpu::copy_from_peer(output, host.peer_payload(place, bytes), bytes);
    host.advance_steps(1);
    return kOkOutcome;
  }

  TwoLevelExchange exchange_;
};

class LeadersAllGather final : public LeadersAlgorithm {
 public:
  LeadersAllGather() : LeadersAlgorithm(Collective::kAllGather), exchange_(Collective::kAllGather) {}
  const char* refusal(const CallShape& shape) const noexcept override {
    if (const char* reason = TwoLevelAlgorithm::refusal(shape)) return reason;
    return shape.bytes > kMostBytes / static_cast<std::size_t>(std::max(1, shape.ranks))
               ? "all ranks' blocks together are larger than a slot of 32 KB"
               : nullptr;
  }
  std::size_t memory(const Call& call, const CallContext& c) const noexcept override {
    return memory_to_take() + CallMemory::bytes_of<std::byte>(result_bytes(call, c)) +
           Inputs::memory(call, c, exchange_);
  }

 private:
  static std::size_t result_bytes(const Call& call, const CallContext& c) noexcept {
    return call.input.size(0) * static_cast<std::size_t>(c.size);
  }
  Outcome execute(const Call& call, CallContext& c) const override {
    const std::size_t bytes = call.input.size(0);
    const auto ranks = static_cast<std::size_t>(c.size);
    if (Outcome outcome = announce(c, call.input.data(0), bytes); !outcome.ok()) return outcome;
    const std::span<std::byte> result = c.memory.take<std::byte>(result_bytes(call, c));
    const bool leads = c.hosts->place() == 0;
    if (leads) {
      if (Outcome outcome = await_announcements(c); !outcome.ok()) return outcome;
      Inputs inputs(c, bytes);
      if (Outcome outcome = inputs.bring(call, c, exchange_); !outcome.ok()) return outcome;
      for (std::size_t r = 0; r < ranks; ++r) cpu::copy(result.data() + r * bytes, inputs.by_rank()[r], bytes);
      hand_out(c, result.data(), result.size());
    } else if (Outcome outcome = take(c, result.data(), result.size()); !outcome.ok()) {
      return outcome;
    }
    for (std::size_t r = 0; r < ranks; ++r) {
      cpu::copy(call.output.data(static_cast<int>(r)), result.data() + r * bytes, bytes);
    }
    return kOkOutcome;
  }

  TwoLevelExchange exchange_;
};

}  // namespace

AlgorithmList leader_algorithms() {
  return {std::make_shared<LeadersBarrier>(), std::make_shared<LeadersAllReduce>(),
          std::make_shared<LeadersBroadcast>(), std::make_shared<LeadersAllGather>()};
}

}  // namespace tutti
