// From a plan to its template: every rank is compared with what the template makes of rank 0.
#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "plan/operations.h"
#include "plan/structure.h"
#include "plan/template/template.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

// A rank's references by what they mean, whatever their numbers in its tables.
class Meaning {
 public:
  explicit Meaning(const Rank& rank) : rank_(rank) {
    for (const ChannelKind kind : {ChannelKind::kMemory, ChannelKind::kPort}) {
      std::map<std::int32_t, std::int32_t> before;
      for (const std::int32_t peer : rank.channels_of(kind)) {
        nth_[static_cast<int>(kind)].push_back(before[peer]++);
      }
    }
  }

  // Peer and which of the channels to it; a group for a switch channel.
  using Channel = std::tuple<std::int32_t, std::int32_t, SwitchChannel>;
  Channel channel(const ThreadBlock& block, ChannelKind kind, std::int32_t id) const {
    const std::int32_t own = block.channels_of(kind)[id];
    if (kind == ChannelKind::kSwitch) return {-1, -1, rank_.switch_channels[own]};
    return {rank_.channels_of(kind)[own], nth_[static_cast<int>(kind)][own], {}};
  }

  // Rank (-1: its own), buffer, group.
  using Target = std::tuple<std::int32_t, BufferKind, SwitchChannel>;
  Target target(const ThreadBlock& block, const Operation& op, const Operand& operand) const {
    switch (operand.place) {
      case Operand::Place::kLocal:
        return {-1, operand.buffer, {}};
      case Operand::Place::kGroup:
        return {-1, BufferKind::kInput, rank_.switch_channels[block.channels_of(ChannelKind::kSwitch)[operand.id]]};
      case Operand::Place::kRemote:
        break;
    }
    const RemoteBuffer& remote = rank_.remote_buffers[block.buffers_of(op.channel)[operand.id]];
    return {remote.rank, remote.buffer, {}};
  }

 private:
  const Rank& rank_;
  std::array<std::vector<std::int32_t>, kChannelKindCount> nth_;
};

class Comparison {
 public:
  Comparison(const Rank& wanted, const Rank& found, std::size_t rank)
      : wanted_(wanted), found_(found), wants_(wanted), finds_(found), rank_(rank) {}

  // Empty if both do the same.
  std::string difference() const {
    const std::string gpu = "/gpus/" + std::to_string(rank_);
    if (wanted_.chunks != found_.chunks || wanted_.semaphores != found_.semaphores) {
      return gpu + ": its chunks or semaphores are not rank 0's";
    }
    if (wanted_.blocks.size() != found_.blocks.size()) {
      return gpu + "/threadblocks: " + std::to_string(found_.blocks.size()) + " thread blocks, rank 0 has " +
             std::to_string(wanted_.blocks.size());
    }
    for (std::size_t b = 0; b < found_.blocks.size(); ++b) {
      const auto& want = wanted_.blocks[b].operations;
      const auto& find = found_.blocks[b].operations;
      for (std::size_t i = 0; i < std::min(want.size(), find.size()); ++i) {
        std::string text = differs(b, want[i], find[i], path_of(rank_, b, i));
        for (std::size_t k = 0; text.empty() && k < find[i].body.size(); ++k) {
          text = differs(b, want[i].body[k], find[i].body[k], path_of(rank_, b, i, k));
        }
        if (!text.empty()) return text;
      }
      if (want.size() != find.size()) {
        return gpu + "/threadblocks/" + std::to_string(b) + ": " + std::to_string(find.size()) +
               " operations, rank 0 has " + std::to_string(want.size());
      }
    }
    return "";
  }

 private:
  std::string differs(std::size_t b, const Operation& want, const Operation& find, const std::string& path) const {
    const auto where = [&](const std::string& what) {
      return path + ": " + what + " of this " + std::string(to_string(find.kind)) +
             (find.origin.empty() ? "" : " (" + find.origin + ")") + " is not rank 0's, moved here";
    };
    const auto same = [](const Operation& x) {
      return std::tie(x.kind, x.channel, x.reduce, x.semaphore_ids, x.barrier_id, x.barrier_blocks, x.part, x.fence,
                      x.iteration);
    };
    if (same(want) != same(find) || want.body.size() != find.body.size()) return where("the kind");
    if (want.channel_ids.size() != find.channel_ids.size()) return where("the number of channels");
    for (std::size_t n = 0; n < want.channel_ids.size(); ++n) {
      const bool equal = wants_.channel(wanted_.blocks[b], want.channel, want.channel_ids[n]) ==
                         finds_.channel(found_.blocks[b], find.channel, find.channel_ids[n]);
      if (!equal) return where("channel " + std::to_string(n));
    }
    const auto operands = [&](const std::vector<Operand>& some, const std::vector<Operand>& others,
                              const char* name) -> std::string {
      if (some.size() != others.size()) return where("the number of " + std::string(name) + "s");
      for (std::size_t n = 0; n < some.size(); ++n) {
        const bool equal =
            some[n].index == others[n].index && some[n].size == others[n].size &&
            wants_.target(wanted_.blocks[b], want, some[n]) == finds_.target(found_.blocks[b], find, others[n]);
        if (!equal) return where(std::string(name) + " " + std::to_string(n));
      }
      return "";
    };
    std::string text = operands(want.sources, find.sources, "source");
    return text.empty() ? operands(want.destinations, find.destinations, "destination") : text;
  }

  const Rank& wanted_;
  const Rank& found_;
  Meaning wants_;
  Meaning finds_;
  std::size_t rank_;
};

// Under which the built-in programs are symmetric: a ring, a cube, hosts of equal size.
std::vector<std::vector<std::int32_t>> likely_dims(std::int32_t ranks) {
  std::vector<std::vector<std::int32_t>> all{{ranks}};
  std::vector<std::int32_t> cube;
  for (std::int32_t left = ranks; left > 1 && left % 2 == 0; left /= 2) cube.push_back(2);
  if (ranks == 1 << cube.size() && ranks > 2) all.push_back(cube);
  for (std::int32_t host = 2; host < ranks; ++host) {
    if (ranks % host != 0) continue;
    all.push_back({host, ranks / host});
    std::vector<std::int32_t> hosts{host};
    std::int32_t left = ranks / host;
    for (; left > 1 && left % 2 == 0; left /= 2) hosts.push_back(2);
    if (left == 1 && host != 2) all.push_back(hosts);
  }
  return all;
}

std::vector<std::int32_t> likely_blocks(const std::vector<std::int32_t>& dims, std::int32_t chunks) {
  std::vector<std::int32_t> blocks{1};
  for (const std::int32_t dim : dims) {
    const std::int32_t next = blocks.back() * dim;
    if (next == blocks.back() || chunks == 0 || chunks % next != 0) continue;
    blocks.push_back(next);
  }
  std::reverse(blocks.begin(), blocks.end());  // the finest first: what stays may also look as if it moved
  return blocks;
}

}  // namespace

Template folded(const Plan& plan, const Symmetry& symmetry) {
  if (static_cast<std::size_t>(symmetry.ranks()) != plan.ranks.size()) {
    throw_error(ErrorKind::kInvalidArgument, "template: dims for " + std::to_string(symmetry.ranks()) +
                                                 " ranks, the plan has " + std::to_string(plan.ranks.size()));
  }
  Template out{plan, symmetry};
  out.plan.ranks.resize(1);
  for (std::size_t r = 1; r < plan.ranks.size(); ++r) {
    const Rank wanted = rank_of(out, static_cast<std::int32_t>(r));
    const std::string text = Comparison(wanted, plan.ranks[r], r).difference();
    if (!text.empty()) throw_error(ErrorKind::kInvalidArgument, "template: " + text);
  }
  return out;
}

Template folded(const Plan& plan) {
  std::optional<std::string> reason;
  const Rank& first = plan.ranks.at(0);
  for (const auto& dims : likely_dims(static_cast<std::int32_t>(plan.ranks.size()))) {
    for (const std::int32_t in : likely_blocks(dims, first.chunks_of(BufferKind::kInput))) {
      for (const std::int32_t out : likely_blocks(dims, first.chunks_of(BufferKind::kOutput))) {
        try {
          return folded(plan, Symmetry(dims, {in, out}));
        } catch (const Error& error) {
          if (error.kind() != ErrorKind::kInvalidArgument) throw;
          if (!reason) reason = error.what();
        }
      }
    }
  }
  throw_error(
      ErrorKind::kInvalidArgument,
      "template: the ranks of this plan are not alike under a ring, a cube or equal hosts. As a ring: " + *reason);
}

}  // namespace tutti::plan
