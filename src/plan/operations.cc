// The table of operations, and the names of all enumerations.
#include "plan/operations.h"

#include <array>

#include "base/names.h"

namespace tutti::plan {
namespace {

constexpr OperandRule kAbsent{};
constexpr OperandRule kPlain{Operand::Place::kLocal, Format::kPlain};
constexpr OperandRule kPackets{Operand::Place::kLocal, Format::kPackets};
constexpr OperandRule kRemotePlain{Operand::Place::kRemote, Format::kPlain};
constexpr OperandRule kRemotePackets{Operand::Place::kRemote, Format::kPackets};
constexpr OperandRule kGroupPlain{Operand::Place::kGroup, Format::kPlain};
constexpr OperandRule kGroupPackets{Operand::Place::kGroup, Format::kPackets};

constexpr unsigned kNoChannel = channel_bit(ChannelKind::kNone);
constexpr unsigned kMemory = channel_bit(ChannelKind::kMemory);
constexpr unsigned kPort = channel_bit(ChannelKind::kPort);
constexpr unsigned kSwitch = channel_bit(ChannelKind::kSwitch);

constexpr OperandRules none() { return {}; }
constexpr OperandRules one(OperandRule rule) { return {rule, kAbsent, kAbsent}; }
constexpr OperandRules many(OperandRule rule) { return {kAbsent, kAbsent, rule}; }
constexpr OperandRules one_and(OperandRule first, OperandRule rest) { return {first, kAbsent, rest}; }
constexpr OperandRules two(OperandRule first, OperandRule second) { return {first, second, kAbsent}; }
constexpr OperandRules all(OperandRule first, OperandRule second, OperandRule rest) { return {first, second, rest}; }

constexpr OperationRules synchronises(OpKind kind, std::string_view name, unsigned channels, SyncKind sync) {
  return {.kind = kind, .name = name, .channels = channels, .sources = none(), .destinations = none(), .sync = sync};
}

constexpr OperationRules moves(OpKind kind, std::string_view name, unsigned channels, OperandRules sources,
                               OperandRules destinations, bool pairwise = false) {
  return {.kind = kind,
          .name = name,
          .channels = channels,
          .sources = sources,
          .destinations = destinations,
          .pairwise = pairwise,
          .may_split = (channels & (kNoChannel | kMemory)) != 0};
}

constexpr OperationRules folds(OpKind kind, std::string_view name, unsigned channels, OperandRules sources,
                               OperandRules destinations, Fold fold) {
  OperationRules rules = moves(kind, name, channels, sources, destinations);
  rules.fold = fold;
  return rules;
}

constexpr OperationRules put_and(OpKind kind, std::string_view name, bool flushes) {
  OperationRules rules = moves(kind, name, kPort, many(kPlain), many(kRemotePlain), true);
  rules.signals = true;
  rules.flushes = flushes;
  return rules;
}

constexpr std::array<OperationRules, kOpKindCount> kRules{{
    synchronises(OpKind::kNop, "nop", kNoChannel, SyncKind::kNop),
    synchronises(OpKind::kBarrier, "barrier", kNoChannel, SyncKind::kBarrier),
    synchronises(OpKind::kSignal, "signal", kMemory | kPort, SyncKind::kSignal),
    synchronises(OpKind::kWait, "wait", kMemory | kPort, SyncKind::kWait),
    synchronises(OpKind::kRelaxedSignal, "rlxsignal", kMemory, SyncKind::kRelaxedSignal),
    synchronises(OpKind::kRelaxedWait, "rlxwait", kMemory, SyncKind::kRelaxedWait),
    synchronises(OpKind::kSemAcquire, "sem_acquire", kNoChannel, SyncKind::kSemaphoreAcquire),
    synchronises(OpKind::kSemRelease, "sem_release", kNoChannel, SyncKind::kSemaphoreRelease),
    synchronises(OpKind::kFlush, "flush", kPort, SyncKind::kFlush),
    moves(OpKind::kCopy, "copy", kNoChannel, one(kPlain), one(kPlain)),
    moves(OpKind::kPut, "put", kMemory | kPort, many(kPlain), many(kRemotePlain), true),
    put_and(OpKind::kPutWithSignal, "pws", false),
    put_and(OpKind::kPutWithSignalAndFlush, "pwsf", true),
    moves(OpKind::kGet, "get", kMemory, many(kRemotePlain), many(kPlain), true),
    folds(OpKind::kReduce, "re", kNoChannel, one_and(kPlain, kPlain), one(kPlain), Fold::kFirstThenRest),
    folds(OpKind::kReduceSend, "res", kMemory, one_and(kPlain, kPlain), one_and(kPlain, kRemotePlain),
          Fold::kFirstThenRest),
    folds(OpKind::kReadReduce, "rre", kMemory, one_and(kPlain, kRemotePlain), one(kPlain), Fold::kFirstThenRest),
    folds(OpKind::kReadReduceSend, "rres", kMemory, one_and(kPlain, kRemotePlain), one_and(kPlain, kRemotePlain),
          Fold::kFirstThenRest),
    moves(OpKind::kCopyPackets, "cpkt", kNoChannel, one(kPlain), one(kPackets)),
    moves(OpKind::kPutPackets, "ppkt", kMemory | kPort, many(kPlain), many(kRemotePackets), true),
    moves(OpKind::kReadPutPackets, "rppkt", kMemory | kPort, one(kPackets), many(kRemotePackets)),
    moves(OpKind::kUnpackPackets, "upkt", kNoChannel, one(kPackets), one(kPlain)),
    folds(OpKind::kReducePackets, "repkt", kNoChannel, one_and(kPlain, kPackets), one(kPlain), Fold::kRestThenFirst),
    folds(OpKind::kReduceSendPackets, "respkt", kMemory, one_and(kPlain, kPackets), one_and(kPlain, kRemotePackets),
          Fold::kRestThenFirst),
    folds(OpKind::kReduceCopyPackets, "recpkt", kNoChannel, one_and(kPlain, kPackets), two(kPlain, kPackets),
          Fold::kRestThenFirst),
    folds(OpKind::kReduceCopySendPackets, "recspkt", kMemory, one_and(kPlain, kPackets),
          all(kPlain, kPackets, kRemotePackets), Fold::kRestThenFirst),
    folds(OpKind::kGroupLoadReduce, "glre", kSwitch, one(kGroupPlain), one(kPlain), Fold::kGroup),
    folds(OpKind::kGroupLoadReduceStore, "glres", kSwitch, one(kGroupPlain), one(kGroupPlain), Fold::kGroup),
    moves(OpKind::kGroupStore, "gstore", kSwitch, one(kPlain), one(kGroupPlain)),
    moves(OpKind::kGroupStorePackets, "gstorepkt", kSwitch, one(kPackets), one(kGroupPackets)),
    {.kind = OpKind::kPipeline, .name = "pipeline", .channels = kNoChannel, .sources = none(), .destinations = none()},
}};

static_assert(in_order<&OperationRules::kind>(kRules), "kRules must follow the order of OpKind");

constexpr std::array<CollectiveRules, 11> kCollectives{{
    {PlanCollective::kAllReduce, "allreduce", true, Collective::kAllReduce},
    {PlanCollective::kAllGather, "allgather", true, Collective::kAllGather},
    {PlanCollective::kReduceScatter, "reducescatter", true, Collective::kReduceScatter},
    {PlanCollective::kAllToAll, "alltoall", true, Collective::kAllToAll},
    {PlanCollective::kSendRecv, "sendrecv", true, std::nullopt},
    {PlanCollective::kBroadcast, "broadcast", true, Collective::kBroadcast},
    {PlanCollective::kReduce, "reduce", true, Collective::kReduce},
    {PlanCollective::kGather, "gather", true, Collective::kGather},
    {PlanCollective::kScatter, "scatter", true, Collective::kScatter},
    {PlanCollective::kTest, "test", false, std::nullopt},
    {PlanCollective::kCustom, "custom", false, std::nullopt},
}};

static_assert(in_order<&CollectiveRules::collective>(kCollectives),
              "kCollectives must follow the order of PlanCollective");

constexpr std::array<std::string_view, 2> kProtocols{"Simple", "LL"};
constexpr std::array<std::string_view, 8> kReduces{"sum", "product", "min", "max", "band", "bor", "bxor", "any"};
constexpr std::array<std::string_view, kBufferKindCount> kBuffers{"i", "o", "s"};
constexpr std::array<std::string_view, kChannelKindCount> kChannels{"none", "memory", "port", "switch"};

template <typename Enum, std::size_t kSize>
std::optional<Enum> find(const std::array<std::string_view, kSize>& names, std::string_view name) noexcept {
  for (std::size_t i = 0; i < kSize; ++i) {
    if (names[i] == name) return static_cast<Enum>(i);
  }
  return std::nullopt;
}

template <typename Enum, std::size_t kSize>
std::string_view name_in(const std::array<std::string_view, kSize>& names, Enum value) noexcept {
  const auto index = static_cast<std::size_t>(value);
  return index < kSize ? names[index] : "unknown";
}

OperandRule rule_at(const OperandRules& rules, std::size_t index) noexcept {
  for (const OperandRule& single : {rules.first, rules.second}) {
    if (single.format == Format::kNone) continue;
    if (index == 0) return single;
    --index;
  }
  return rules.rest;
}

}  // namespace

const CollectiveRules& rules_of(PlanCollective collective) noexcept {
  return kCollectives[static_cast<std::size_t>(collective)];
}

const OperationRules& rules_of(OpKind kind) noexcept { return kRules[static_cast<std::size_t>(kind)]; }

std::optional<OpKind> op_kind_of(std::string_view name) noexcept {
  for (const OperationRules& rules : kRules) {
    if (rules.name == name) return rules.kind;
  }
  return std::nullopt;
}

OperandRule source_rule(const Operation& op, std::size_t index) noexcept {
  if (op.kind == OpKind::kPutPackets && op.channel == ChannelKind::kPort) return kPackets;
  return rule_at(rules_of(op.kind).sources, index);
}

OperandRule destination_rule(const Operation& op, std::size_t index) noexcept {
  return rule_at(rules_of(op.kind).destinations, index);
}

bool moves_data(OpKind kind) noexcept {
  const OperandRules& sources = rules_of(kind).sources;
  return sources.first.format != Format::kNone || sources.rest.format != Format::kNone;
}

bool uses_packets(const Operation& op) noexcept {
  const OperationRules& rules = rules_of(op.kind);
  for (const OperandRules* side : {&rules.sources, &rules.destinations}) {
    for (const OperandRule& rule : {side->first, side->second, side->rest}) {
      if (rule.format == Format::kPackets) return true;
    }
  }
  return false;
}

std::string_view to_string(OpKind kind) noexcept { return rules_of(kind).name; }
std::string_view to_string(PlanCollective collective) noexcept { return rules_of(collective).name; }
std::string_view to_string(Protocol protocol) noexcept { return name_in(kProtocols, protocol); }
std::string_view to_string(ReduceKind reduce) noexcept { return name_in(kReduces, reduce); }
std::string_view to_string(BufferKind buffer) noexcept { return name_in(kBuffers, buffer); }
std::string_view to_string(ChannelKind channel) noexcept { return name_in(kChannels, channel); }

std::optional<PlanCollective> collective_of(std::string_view name) noexcept {
  for (const CollectiveRules& rules : kCollectives) {
    if (rules.name == name) return rules.collective;
  }
  return std::nullopt;
}
std::optional<Protocol> protocol_of(std::string_view name) noexcept { return find<Protocol>(kProtocols, name); }
std::optional<ReduceKind> reduce_of(std::string_view name) noexcept { return find<ReduceKind>(kReduces, name); }
std::optional<BufferKind> buffer_of(std::string_view name) noexcept { return find<BufferKind>(kBuffers, name); }
std::optional<ChannelKind> channel_of(std::string_view name) noexcept { return find<ChannelKind>(kChannels, name); }

}  // namespace tutti::plan
