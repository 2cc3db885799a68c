#include "channel/cuda/probe_verdict.h"

#include <gtest/gtest.h>

namespace tutti::cuda::test {
namespace {

// Ranks whose probes have found nothing wrong.
std::vector<ProbeResult> sound(int size) {
  std::vector<ProbeResult> results(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    for (int p = 0; p < size; ++p) {
      if (p == r) continue;
      const ProbeResult whole = ProbeResult{1} << p, lines = ProbeResult{1} << (32 + p);
      results[static_cast<std::size_t>(r)] |= whole | native_atomics_with(p) | lines;
    }
  }
  return results;
}

TEST(ProbeVerdict, SoundPairsUseLines) {
  for (const int size : {1, 2, 8}) {
    const ProbeVerdict verdict = judge_probes(sound(size));
    EXPECT_TRUE(verdict.whole && verdict.lines) << size;
    EXPECT_EQ(verdict.problem, "") << size;
  }
}

// No torn line was seen, but one link has no native atomics: no rank uses lines.
TEST(ProbeVerdict, LinesNeedNativeAtomicsOverEveryLink) {
  for (int r = 0; r < 4; ++r) {
    for (int p = 0; p < 4; ++p) {
      if (p == r) continue;
      std::vector<ProbeResult> results = sound(4);
      results[static_cast<std::size_t>(r)] &= ~native_atomics_with(p);
      const ProbeVerdict verdict = judge_probes(results);
      EXPECT_TRUE(verdict.whole);
      EXPECT_FALSE(verdict.lines);
      EXPECT_EQ(verdict.problem, "rank " + std::to_string(r) +
                                     "'s driver knows of no native atomics over its link to the GPU of rank " +
                                     std::to_string(p));
    }
  }
}

TEST(ProbeVerdict, TornLinesAndMissingDataAreNamed) {
  std::vector<ProbeResult> results = sound(3);
  results[2] &= ~(std::uint64_t{1} << 33);
  EXPECT_TRUE(judge_probes(results).whole);
  EXPECT_FALSE(judge_probes(results).lines);
  EXPECT_EQ(judge_probes(results).problem, "those from rank 1 come torn to rank 2");
  results[1] = 0;
  EXPECT_FALSE(judge_probes(results).whole);
  EXPECT_FALSE(judge_probes(results).lines);
  EXPECT_EQ(judge_probes(results).problem, "data from rank 0 does not reach rank 1");
}

}  // namespace
}  // namespace tutti::cuda::test
