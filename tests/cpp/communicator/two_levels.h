// Groups on several hosts of several ranks, and calls for them.
#pragma once

#include <string>
#include <vector>

#include "communicator/thread_ranks.h"

namespace tutti::test {

// A letter a rank names its host: "aab" has ranks 0 and 1 on one host.
inline World world_of(const std::string& layout, const std::string& algorithm = "") {
  World world;
  world.size = static_cast<int>(layout.size());
  world.host_of = [layout](int rank) { return std::string(1, layout[static_cast<std::size_t>(rank)]); };
  world.algorithm = algorithm;
  return world;
}

// A call over floats, with memory for any collective.
struct FloatCall {
  FloatCall(Collective collective, std::size_t count, int ranks, int root = -1)
      : in(count * static_cast<std::size_t>(ranks)), out(in.size(), -1) {
    call.collective = collective;
    call.dtype = DataType::kFloat32;
    call.count = count;
    call.root = root;
    call.input = Blocks::single(in.data(), count * sizeof(float));
    call.output = Blocks::single(collective == Collective::kBroadcast ? in.data() : out.data(), count * sizeof(float));
  }
  FloatCall(const FloatCall&) = delete;

  std::vector<float> in, out;
  Call call;
};

// Which algorithms have run a collective, and how often.
inline std::uint64_t calls_by(const Communicator& c, Collective collective, const std::string& algorithm) {
  std::uint64_t calls = 0;
  for (const MetricsRow& row : c.metrics().rows) {
    if (row.collective == to_string(collective) && row.algorithm == algorithm) calls += row.calls;
  }
  return calls;
}

}  // namespace tutti::test
