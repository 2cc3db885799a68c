#include "executor/program/inflow.h"

#include <algorithm>
#include <map>
#include <set>

#include "executor/program/program.h"
#include "plan/operations.h"

namespace tutti::executor {
namespace {

using plan::ChannelKind;
using plan::Operand;
using plan::Operation;

// What the thread blocks of one rank do over a port channel.
struct PortUse {
  std::set<std::size_t> blocks;  // that post to it
  bool signals = false;
};

class CrossingCheck {
 public:
  CrossingCheck(const plan::Plan& plan, const plan::Links& links, const RankMap& map)
      : plan_(plan), links_(links), map_(map) {}

  std::string fault() {
    for (std::size_t rank = 0; rank < plan_.ranks.size() && fault_.empty(); ++rank) {
      rank_ = static_cast<std::int32_t>(rank);
      uses_.clear();
      const plan::Rank& own = plan_.ranks[rank];
      for (std::size_t b = 0; b < own.blocks.size(); ++b) {
        for (const Operation& op : own.blocks[b].operations) {
          look(b, op);
          for (const Operation& inner : op.body) look(b, inner);
        }
      }
      look_at_ports();
    }
    return fault_;
  }

 private:
  const plan::Rank& own() const { return plan_.ranks[static_cast<std::size_t>(rank_)]; }
  bool far(std::int32_t a, std::int32_t b) const { return !map_.together(a, b); }
  void complain(const std::string& text) {
    if (fault_.empty()) fault_ = text + "; between hosts only port channels reach";
  }

  void look(std::size_t b, const Operation& op) {
    const plan::ThreadBlock& block = own().blocks[b];
    if (op.channel == ChannelKind::kPort) note_ports(b, op);
    if (op.channel == ChannelKind::kMemory) {
      for (const std::int32_t id : op.channel_ids) {
        const std::int32_t channel = block.channels_of(ChannelKind::kMemory)[static_cast<std::size_t>(id)];
        const std::int32_t peer = own().channels_of(ChannelKind::kMemory)[static_cast<std::size_t>(channel)];
        if (far(rank_, peer)) complain_of_memory(peer, " by its memory channel " + std::to_string(channel));
      }
    }
    for (const auto* side : {&op.sources, &op.destinations}) {
      for (const Operand& operand : *side) look(block, op, operand);
    }
  }

  void look(const plan::ThreadBlock& block, const Operation& op, const Operand& operand) {
    if (operand.place == Operand::Place::kGroup) return look_at_group(block, operand.id);
    if (operand.place == Operand::Place::kLocal || op.channel == ChannelKind::kPort) return;
    const std::int32_t peer = plan::place_of(plan_, rank_, block, op, operand).rank;
    if (far(rank_, peer)) complain_of_memory(peer, " by its memory");
  }

  void look_at_group(const plan::ThreadBlock& block, std::int32_t id) {
    const std::int32_t channel = block.channels_of(ChannelKind::kSwitch)[static_cast<std::size_t>(id)];
    const auto& groups = links_.groups();
    for (const std::int32_t member : groups[static_cast<std::size_t>(links_.group_of(rank_, channel))].ranks) {
      if (!far(rank_, member)) continue;
      complain("switch channel " + std::to_string(channel) + " of rank " + std::to_string(rank_) + " has rank " +
               std::to_string(member) + " of another host in its group");
    }
  }

  void complain_of_memory(std::int32_t peer, const std::string& how) {
    complain("rank " + std::to_string(rank_) + " reaches rank " + std::to_string(peer) + " of another host" + how);
  }

  void note_ports(std::size_t b, const Operation& op) {
    const plan::OperationRules& rules = plan::rules_of(op.kind);
    const bool signals = rules.signals || rules.sync == plan::SyncKind::kSignal;
    if (!signals && !plan::moves_data(op.kind)) return;
    for (const std::int32_t id : op.channel_ids) {
      PortUse& use = uses_[own().blocks[b].channels_of(ChannelKind::kPort)[static_cast<std::size_t>(id)]];
      use.blocks.insert(b);
      use.signals = use.signals || signals;
    }
  }

  void look_at_ports() {
    for (const auto& [channel, use] : uses_) {
      const std::int32_t peer = own().channels_of(ChannelKind::kPort)[static_cast<std::size_t>(channel)];
      if (!far(rank_, peer)) continue;
      const std::string name = "port channel " + std::to_string(channel) + " of rank " + std::to_string(rank_) +
                               " to rank " + std::to_string(peer) + " of another host";
      if (use.signals && use.blocks.size() > 1 && fault_.empty()) {
        fault_ = name + " signals and is used by several thread blocks, so the order of what it carries is not known";
      }
      if (stream_of(own(), static_cast<std::size_t>(channel), *use.blocks.rbegin()) > kMostStream && fault_.empty()) {
        fault_ = name + ": too many port channels and thread blocks";
      }
    }
  }

  const plan::Plan& plan_;
  const plan::Links& links_;
  const RankMap& map_;
  std::int32_t rank_ = 0;
  std::map<std::int32_t, PortUse> uses_;  // by port channel of rank_
  std::string fault_;
};

}  // namespace

std::string crossing_fault(const plan::Plan& plan, const plan::Links& links, const RankMap& map) {
  return CrossingCheck(plan, links, map).fault();
}

// What `sender`, a rank of another host, posts to this one.
void Program::add_inflows(const Tables& tables, const Program& sender) {
  const auto base_of = [this](const BaseRef& ref) {
    const auto same = [&ref](const BaseRef& b) {
      return b.rank == ref.rank && b.area == ref.area && b.block == ref.block;
    };
    const auto found = std::find_if(bases_.begin(), bases_.end(), same);
    if (found != bases_.end()) return static_cast<std::uint32_t>(found - bases_.begin());
    bases_.push_back(ref);
    return static_cast<std::uint32_t>(bases_.size() - 1);
  };
  std::map<std::uint32_t, Inflow> streams;
  for (const auto& list : sender.blocks_) {
    for (const Instruction& post : list) {
      if (!post.far || post.peer != rank_) continue;
      Inflow& inflow = streams[post.counter];
      inflow.peer = sender.rank_;
      inflow.stream = post.counter;
      const auto channel = static_cast<std::int32_t>(post.agent);
      inflow.counter =
          tables.counter(ChannelKind::kPort, rank_, tables.links().partner(ChannelKind::kPort, sender.rank_, channel));
      if (post.code == Code::kPostSignal) {
        if (!post.rides) inflow.arrivals.push_back({});
        ++inflow.arrivals.back().signals;
        continue;
      }
      const Pointer& target = sender.pointers_[post.pointers + 1];
      const std::uint32_t pointer = static_cast<std::uint32_t>(pointers_.size());
      pointers_.push_back({base_of(sender.bases_[target.base]), target.offset});
      inflow.arrivals.push_back({pointer, wire_bytes(post), post.packets, 0});
    }
  }
  for (auto& [stream, inflow] : streams) inflows_.push_back(std::move(inflow));
}

}  // namespace tutti::executor
