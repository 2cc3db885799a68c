// Rules of the tuning table, and which of them a call follows: on CPUs and on GPUs.
//
// Thread rule: built once, then const and shared.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tutti/types.h"

namespace tutti {

// What calls of a kind have taken, up to a size.
struct TuningRule {
  struct Measured {
    std::string algorithm;
    std::int64_t ns = 0;  // of one call, of the slowest rank
  };
  Collective collective = Collective::kBarrier;
  DataType dtype = DataType::kFloat32;
  bool mapped = false;             // all ranks' tensors are mapped; otherwise none
  std::size_t bytes = 0;           // of one rank's block, as measured
  std::size_t max_bytes = 0;       // up to which the rule holds
  std::vector<Measured> measured;  // in order of preference
};

// What `algorithm` has taken; -1: it was not measured.
std::int64_t measured_ns(const TuningRule& rule, std::string_view algorithm) noexcept;
// "3.21 us"; three digits, as far as they mean something.
std::string time_text(std::int64_t ns);
// "times: the tuning table's, of 4096 bytes, f32, private".
std::string source_of_times(const TuningRule& rule);

// Rules, each with what its names stand for here, in the same order of preference.
template <class Meant>
class TunedRules {
 public:
  struct Rule {
    TuningRule said;
    std::vector<Meant> order;
  };

  void add(TuningRule said, std::vector<Meant> order) {
    auto& types = rules_[static_cast<std::size_t>(said.collective)];
    auto type = std::find_if(types.begin(), types.end(), [&](const OfType& t) { return t.dtype == said.dtype; });
    if (type == types.end()) {
      type = types.insert(said.dtype == DataType::kFloat32 ? types.begin() : types.end(), {said.dtype, {}});
    }
    auto& list = type->rules[said.mapped ? 1 : 0];
    const auto place = std::upper_bound(list.begin(), list.end(), said.max_bytes,
                                        [](std::size_t bytes, const Rule& r) { return bytes < r.said.max_bytes; });
    list.insert(place, {std::move(said), std::move(order)});
  }

  // Null: nothing was measured that stands for such a call.
  const Rule* find(Collective collective, DataType dtype, bool mapped, std::size_t bytes) const noexcept {
    const auto& types = rules_[static_cast<std::size_t>(collective)];
    if (types.empty()) return nullptr;
    const OfType* type = types.data();
    for (const OfType& other : types) {
      if (other.dtype == dtype) type = &other;
    }
    for (const Rule& rule : type->rules[mapped ? 1 : 0]) {
      if (bytes <= rule.said.max_bytes) return &rule;
    }
    return nullptr;
  }

 private:
  struct OfType {
    DataType dtype;
    std::array<std::vector<Rule>, 2> rules;  // for private and for mapped tensors, ascending by size
  };

  std::array<std::vector<OfType>, kCollectiveCount> rules_;  // float32 first: it stands for what was not measured
};

}  // namespace tutti
