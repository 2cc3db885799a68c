// The operations of a plan as one table: their names, what they may hold, what they do.
//
// The reader checks a plan against it, the writer and the verifier are driven by it, and an executor finds here which
// operand is what. Semantics:
//   - Operands come in the order first, second, rest. "first" and "second" are single operands, "rest" repeats.
//   - In a pairwise operation the i-th source goes to the i-th destination; elsewhere one value goes to all.
//   - A reduction combines its sources in the order given by `fold`, one element at a time.
//   - A part of a group (Operation::part) narrows all operands alike.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "plan/plan.h"
#include "tutti/types.h"

namespace tutti::plan {

// What an operation orders. Operations that only move data order nothing but their own packets.
enum class SyncKind : std::uint8_t {
  kNone,
  kNop,            // joins the lanes of its thread block
  kBarrier,        // all blocks of the barrier, both orders
  kSignal,         // release: raises the peer's counter of each channel
  kWait,           // acquire: takes one from this rank's counter of each channel
  kRelaxedSignal,  // raises the counter, publishes nothing
  kRelaxedWait,    // takes one, acquires nothing
  kSemaphoreRelease,
  kSemaphoreAcquire,
  kFlush,  // the channel's earlier puts have read their sources
};

// What an operand holds: elements, or packets of elements and flags (one chunk's packets take two chunks of bytes).
enum class Format : std::uint8_t { kNone, kPlain, kPackets };

// One position of an operand list.
struct OperandRule {
  Operand::Place place = Operand::Place::kLocal;
  Format format = Format::kNone;  // kNone: the position does not exist
};

struct OperandRules {
  OperandRule first;
  OperandRule second;
  OperandRule rest;  // one or more
};

// In which order a reduction combines its sources.
enum class Fold : std::uint8_t {
  kNone,
  kFirstThenRest,  // ((s0 + s1) + s2) …
  kRestThenFirst,  // ((s1 + s2) …) + s0
  kGroup,          // the group's ranks in the order of the group, before any rounding
};

inline constexpr unsigned channel_bit(ChannelKind kind) { return 1u << static_cast<unsigned>(kind); }

struct OperationRules {
  OpKind kind;
  std::string_view name;  // in JSON
  unsigned channels;      // allowed ChannelKinds, as channel_bit
  OperandRules sources;
  OperandRules destinations;
  bool pairwise = false;  // as many sources as destinations
  Fold fold = Fold::kNone;
  SyncKind sync = SyncKind::kNone;
  bool signals = false;    // a put that also signals its channel
  bool flushes = false;    // … and waits until its source is free
  bool may_split = false;  // Operation::part is allowed
};

const OperationRules& rules_of(OpKind kind) noexcept;

// A collective, and whether it says what every rank's output holds. Only then can a result be checked, and only then do
// buffers consist of the collective's rank blocks.
struct CollectiveRules {
  PlanCollective collective;
  std::string_view name;  // in JSON
  bool defines_result;
  std::optional<Collective> call;  // which of those in tutti/call.h it is; none for a plan that can be proven, not run
};

const CollectiveRules& rules_of(PlanCollective collective) noexcept;
std::optional<OpKind> op_kind_of(std::string_view name) noexcept;

inline bool reduces(OpKind kind) noexcept { return rules_of(kind).fold != Fold::kNone; }
bool moves_data(OpKind kind) noexcept;

// The rule that governs operand `index` of `op`. A put of packets through a port copies packets, through memory it
// makes them.
OperandRule source_rule(const Operation& op, std::size_t index) noexcept;
OperandRule destination_rule(const Operation& op, std::size_t index) noexcept;

// True if an operand of the operation holds packets.
bool uses_packets(const Operation& op) noexcept;

std::string_view to_string(OpKind kind) noexcept;
std::string_view to_string(PlanCollective collective) noexcept;
std::string_view to_string(Protocol protocol) noexcept;
std::string_view to_string(ReduceKind reduce) noexcept;
std::string_view to_string(BufferKind buffer) noexcept;  // "i", "o", "s"
std::string_view to_string(ChannelKind channel) noexcept;

std::optional<PlanCollective> collective_of(std::string_view name) noexcept;
std::optional<Protocol> protocol_of(std::string_view name) noexcept;
std::optional<ReduceKind> reduce_of(std::string_view name) noexcept;
std::optional<BufferKind> buffer_of(std::string_view name) noexcept;
std::optional<ChannelKind> channel_of(std::string_view name) noexcept;

}  // namespace tutti::plan
