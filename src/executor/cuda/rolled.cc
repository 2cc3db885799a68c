#include "executor/cuda/rolled.h"

#include <algorithm>

namespace tutti::executor {
namespace {

constexpr std::size_t kMostBody = 64;  // records
constexpr std::uint64_t kLeastTurns = 3;

class Roller {
 public:
  Roller(std::span<const DeviceOp> ops, std::span<const DeviceOperand> operands) : ops_(ops), operands_(operands) {}

  std::vector<Stretch> run() {
    std::vector<Stretch> made;
    for (std::size_t at = 0; at < ops_.size();) {
      const Stretch best = longest_loop(at);
      if (best.turns > 1) {
        made.push_back(best);
      } else if (!made.empty() && made.back().turns == 1) {
        ++made.back().length;
      } else {
        made.push_back({at, 1, 1});
      }
      at += best.length * static_cast<std::size_t>(best.turns);
    }
    return made;
  }

 private:
  const DeviceOperand& operand(std::size_t op, std::uint32_t i) const { return operands_[ops_[op].first + i]; }

  bool alike(std::size_t a, std::size_t b) const {
    const DeviceOp &x = ops_[a], &y = ops_[b];
    if (x.code != y.code || x.joins != y.joins || x.fences != y.fences || x.sources != y.sources ||
        x.targets != y.targets || x.plain != y.plain || x.bytes != y.bytes) {
      return false;
    }
    for (std::uint32_t i = 0; i < x.sources + x.targets; ++i) {
      const DeviceOperand &p = operand(a, i), &q = operand(b, i);
      if (p.place != q.place || p.extra != q.extra || p.peer != q.peer) return false;
      if (p.place == kFixed && p.value >> kSpaceBits != q.value >> kSpaceBits) return false;
    }
    return true;
  }
  // c follows b as b follows a.
  bool evenly_spaced(std::size_t a, std::size_t b, std::size_t c) const {
    for (std::uint32_t i = 0; i < ops_[a].sources + ops_[a].targets; ++i) {
      const std::uint64_t step = operand(b, i).value - operand(a, i).value;  // may wrap: a difference backwards
      if (operand(c, i).value - operand(b, i).value != step) return false;
    }
    return true;
  }

  Stretch longest_loop(std::size_t at) const {
    Stretch best{at, 1, 1};
    for (std::size_t length = 1; length <= kMostBody && at + kLeastTurns * length <= ops_.size(); ++length) {
      std::size_t repeated = 0;  // records behind the first turn
      for (std::size_t i = at; i + length < ops_.size(); ++i, ++repeated) {
        if (!alike(i, i + length)) break;
        if (i >= at + length && !evenly_spaced(i - length, i, i + length)) break;
      }
      const std::uint64_t turns = 1 + repeated / length;
      if (turns >= kLeastTurns && turns * length > best.turns * best.length) best = {at, length, turns};
    }
    return best;
  }

  const std::span<const DeviceOp> ops_;
  const std::span<const DeviceOperand> operands_;
};

}  // namespace

std::vector<Stretch> roll(std::span<const DeviceOp> ops, std::span<const DeviceOperand> operands) {
  return Roller(ops, operands).run();
}

}  // namespace tutti::executor
