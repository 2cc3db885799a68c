// How the buffers of each collective are cut into rank blocks.
#include <algorithm>
#include <optional>
#include <string>

#include "base/collective_traits.h"
#include "plan/json_document.h"
#include "plan/operations.h"
#include "plan/sizes.h"
#include "plan/structure.h"

namespace tutti::plan {
namespace {

// Rank blocks of input and output for `ranks` ranks.
std::array<std::int32_t, 2> blocks_of(PlanCollective collective, std::int32_t ranks) {
  const std::optional<Collective> call = rules_of(collective).call;
  if (!call) return {1, 1};
  return {traits_of(*call).input_blocks ? ranks : 1, traits_of(*call).output_blocks ? ranks : 1};
}

// Which ranks have a buffer: in rooted collectives some need none.
bool needs(const Plan& plan, std::size_t rank, int buffer) {
  const bool root = rank == static_cast<std::size_t>(plan.root);
  switch (plan.collective) {
    case PlanCollective::kReduce:
    case PlanCollective::kGather:
      return buffer == kIn || root;
    case PlanCollective::kScatter:
      return buffer == kOut || root;
    default:
      return true;
  }
}

// Pipelines: what their bodies move must be what they iterate over.
void check_pipeline(const Operation& op, const std::string& path) {
  for (std::size_t k = 0; k < op.body.size(); ++k) {
    const Operation& inner = op.body[k];
    const std::string at = path + "/ops/" + std::to_string(k);
    if (inner.part) throw_at(at + "/tbg_info", "a group's part cannot be repeated in a pipeline");
    for (std::size_t i = 0; i < inner.sources.size(); ++i) {
      if (inner.sources[i].size <= op.iteration.chunks) continue;
      throw_at(at + "/src_buff/" + std::to_string(i) + "/size", "greater than the pipeline's \"num_chunks\" " +
                                                                    std::to_string(op.iteration.chunks) +
                                                                    ", so its end would be lost");
    }
  }
}

bool touches_scratch(const Plan& plan, std::int32_t rank, const ThreadBlock& block, const Operation& op,
                     const Operand& operand) {
  if (operand.place == Operand::Place::kGroup) {
    const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[operand.id];
    return plan.ranks[rank].switch_channels[channel].buffer == BufferKind::kScratch;
  }
  return place_of(plan, rank, block, op, operand).buffer == BufferKind::kScratch;
}

// Calls visit(operand, its rule, the pipeline around it or null) for every operand that lies in scratch.
template <typename Visit>
void for_each_scratch_operand(const Plan& plan, const Visit& visit) {
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    for (const ThreadBlock& block : plan.ranks[r].blocks) {
      const auto look = [&](const Operation& op, const Operation* pipeline) {
        for (std::size_t i = 0; i < op.sources.size() + op.destinations.size(); ++i) {
          const bool source = i < op.sources.size();
          const std::size_t nth = source ? i : i - op.sources.size();
          const Operand& operand = source ? op.sources[nth] : op.destinations[nth];
          if (!touches_scratch(plan, static_cast<std::int32_t>(r), block, op, operand)) continue;
          visit(operand, source ? source_rule(op, nth) : destination_rule(op, nth), pipeline);
        }
      };
      for (const Operation& op : block.operations) {
        look(op, nullptr);
        for (const Operation& inner : op.body) look(inner, &op);
      }
    }
  }
}

}  // namespace

Shape shape_of(const Plan& plan) {
  Shape shape;
  shape.blocks = blocks_of(plan.collective, static_cast<std::int32_t>(plan.ranks.size()));
  for (const int buffer : {kIn, kOut}) {
    std::int32_t most = 0;
    for (const Rank& rank : plan.ranks) most = std::max(most, rank.chunks[buffer]);
    shape.block_chunks[buffer] = most / shape.blocks[buffer];
  }
  // In place one buffer is (part of) the other, so a plan may leave one of them out.
  if (plan.in_place && rules_of(plan.collective).defines_result) {
    for (const int buffer : {kIn, kOut}) {
      if (shape.block_chunks[buffer] == 0) shape.block_chunks[buffer] = shape.block_chunks[1 - buffer];
    }
  }
  return shape;
}

void check_shape(const Plan& plan) {
  const Shape shape = shape_of(plan);
  constexpr std::array<std::string_view, 2> kKeys{"/input_chunks", "/output_chunks"};
  if (rules_of(plan.collective).defines_result &&
      (shape.block_chunks[kIn] != shape.block_chunks[kOut] || shape.block_chunks[kIn] == 0)) {
    throw_at("/gpus", "the chunks of input and output do not fit \"" + plan.collective_name + "\" among " +
                          std::to_string(plan.ranks.size()) + " ranks");
  }
  for (std::size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    for (const int buffer : {kIn, kOut}) {
      const std::int32_t expected = shape.blocks[buffer] * shape.block_chunks[buffer];
      const std::int32_t chunks = plan.ranks[rank].chunks[buffer];
      if (chunks == expected || (chunks == 0 && (plan.in_place || !needs(plan, rank, buffer)))) continue;
      throw_at(
          "/gpus/" + std::to_string(rank) + std::string(kKeys[buffer]),
          std::to_string(chunks) + "; \"" + plan.collective_name + "\" needs " + std::to_string(expected) + " here");
    }
    for (std::size_t b = 0; b < plan.ranks[rank].blocks.size(); ++b) {
      const auto& operations = plan.ranks[rank].blocks[b].operations;
      for (std::size_t i = 0; i < operations.size(); ++i) check_pipeline(operations[i], path_of(rank, b, i));
    }
  }
}

ScratchUse scratch_use(const Plan& plan) {
  ScratchUse use;
  for_each_scratch_operand(plan, [&use](const Operand&, const OperandRule& rule, const Operation*) {
    (rule.format == Format::kPackets ? use.packets : use.plain) = true;
  });
  return use;
}

std::int64_t ring_unit(const Plan& plan) {
  std::int64_t unit = 0;
  bool possible = true;
  for_each_scratch_operand(plan, [&](const Operand& operand, const OperandRule&, const Operation* pipeline) {
    if (pipeline == nullptr || operand.size != 1) {
      possible = false;
      return;
    }
    if (unit == 0) unit = pipeline->iteration.unit_bytes;
    possible = possible && unit == pipeline->iteration.unit_bytes;
  });
  return possible ? unit : 0;
}

}  // namespace tutti::plan
