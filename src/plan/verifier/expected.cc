// The collectives, chunk by chunk.
#include "plan/verifier/expected.h"

#include "plan/operations.h"

namespace tutti::plan {

Expected::Expected(const Plan& plan, const Layout& layout, const Values& values)
    : plan_(plan),
      layout_(layout),
      values_(values),
      block_chunks_(layout.shape().block_chunks[static_cast<int>(BufferKind::kOutput)]),
      source_(plan.ranks.size(), -1),
      taker_(plan.ranks.size(), -1) {
  if (plan.collective == PlanCollective::kAllReduce) {
    first_.assign(static_cast<std::size_t>(block_chunks_ * layout.cut().units), kUndefined);
  }
}

bool Expected::defined(std::int32_t rank) const {
  switch (plan_.collective) {
    case PlanCollective::kReduce:
    case PlanCollective::kGather:
      return rank == plan_.root;
    default:
      return rules_of(plan_.collective).defines_result;
  }
}

Expected::Wanted Expected::wanted(std::int32_t rank, std::int64_t chunk) const {
  const std::int64_t k = chunk % block_chunks_;
  const auto block = static_cast<std::int32_t>(chunk / block_chunks_);
  switch (plan_.collective) {
    case PlanCollective::kAllGather:
    case PlanCollective::kGather:
      return {false, block, k};
    case PlanCollective::kReduceScatter:
      return {true, -1, rank * block_chunks_ + k};
    case PlanCollective::kAllToAll:
      return {false, block, rank * block_chunks_ + k};
    case PlanCollective::kBroadcast:
      return {false, plan_.root, chunk};
    case PlanCollective::kScatter:
      return {false, plan_.root, rank * block_chunks_ + k};
    default:
      return {true, -1, chunk};
  }
}

std::string Expected::found(ValueId value) const {
  if (value == kUndefined) return "nothing was written there";
  const Values::Summary& is = values_.summary(value);
  const std::int64_t chunk = is.place / layout_.cut().units;
  if (!is.sound) return "it holds a reduction of inputs that do not belong together, or of one twice";
  if (is.count == 1 && !is.reduced) {
    return "it holds chunk " + std::to_string(chunk) + " of rank " + std::to_string(is.rank) + "'s input" +
           (is.invocation >= 0 ? " of call " + std::to_string(is.invocation + 1) : "");
  }
  std::string missing;
  for (std::size_t r = 0; r < plan_.ranks.size(); ++r) {
    if (values_.contains(value, static_cast<std::int32_t>(r))) continue;
    missing = "; rank " + std::to_string(r) + "'s is missing";
    break;
  }
  return "it holds the " + std::string(to_string(is.reduce)) + " of chunk " + std::to_string(chunk) + " of " +
         std::to_string(is.count) + " ranks of call " + std::to_string(is.invocation + 1) + missing;
}

std::string Expected::reduction_fault(const Wanted& want, std::int64_t unit, ValueId value, std::int32_t invocation) {
  const Values::Summary& is = values_.summary(value);
  const auto ranks = static_cast<std::int32_t>(plan_.ranks.size());
  const bool right = is.sound && is.place == want.chunk * layout_.cut().units + unit && is.invocation == invocation &&
                     is.count == ranks;
  if (right && is.reduced && !reduction_) reduction_ = is.reduce;
  if (right && is.reduced && is.reduce != *reduction_) {
    return found(value) + ", while other chunks hold the " + std::string(to_string(*reduction_)) +
           ": no caller asks for both";
  }
  if (right) return "";
  return "the reduction of chunk " + std::to_string(want.chunk) + " of all " + std::to_string(ranks) +
         " ranks' inputs is wanted, but " + found(value);
}

std::string Expected::send_fault(std::int32_t rank, std::int64_t chunk, std::int64_t unit, ValueId value,
                                 std::int32_t invocation) {
  const Values::Summary& is = values_.summary(value);
  const bool plain =
      is.sound && !is.reduced && is.invocation == invocation && is.place == chunk * layout_.cut().units + unit;
  if (!plain) return "the same chunk of one rank's input is wanted, but " + found(value);
  if (source_[rank] < 0) source_[rank] = is.rank;
  if (taker_[is.rank] < 0) taker_[is.rank] = rank;
  if (source_[rank] != is.rank) {
    return "rank " + std::to_string(source_[rank]) + " sent the chunks before, but " + found(value);
  }
  if (taker_[is.rank] != rank) {
    return "rank " + std::to_string(taker_[is.rank]) + " has received rank " + std::to_string(is.rank) +
           "'s input already, and " + found(value);
  }
  return "";
}

std::string Expected::fault_of(std::int32_t rank, std::int64_t chunk, std::int64_t unit, ValueId value,
                               std::int32_t invocation) {
  if (plan_.collective == PlanCollective::kSendRecv) return send_fault(rank, chunk, unit, value, invocation);
  const Wanted want = wanted(rank, chunk);
  if (want.reduced) {
    std::string fault = reduction_fault(want, unit, value, invocation);
    if (fault.empty() && invocation == 0 && !first_.empty()) {
      ValueId& first = first_[static_cast<std::size_t>(chunk * layout_.cut().units + unit)];
      if (first == kUndefined) first = value;
      same_bits_ = same_bits_ && first == value;
    }
    return fault;
  }
  const Values::Summary& is = values_.summary(value);
  const bool right = is.sound && !is.reduced && is.rank == want.rank && is.invocation == invocation &&
                     is.place == want.chunk * layout_.cut().units + unit;
  if (right) return "";
  return "chunk " + std::to_string(want.chunk) + " of rank " + std::to_string(want.rank) + "'s input is wanted, but " +
         found(value);
}

}  // namespace tutti::plan
