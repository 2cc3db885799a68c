// The families that come with the library are proven at every number of ranks that they are for, and refuse the others.
#include "plan/generators/generators.h"

#include <gtest/gtest.h>

#include <string>

#include "plan/verifier/verifier.h"
#include "support/sanitized.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

void expect_proven(std::string_view family, const GeneratorSpec& spec) {
  const Verdict verdict = verify_strictly(generate_written_out(family, spec));
  EXPECT_EQ(verdict.outcome, Outcome::kProven) << family << ", " << spec.ranks << ": " << verdict.fault.message;
  EXPECT_TRUE(verdict.same_bits) << family << ", " << spec.ranks;
}

TEST(Generators, AreProven) {
  for (const std::int32_t ranks : {2, 3, 4, 5, 6, 7, 8, 9, 16, 31, 64}) {
    if (test::kSanitized && ranks > 16) break;
    for (const char* family : {"ring", "double-tree", "two-shot", "one-shot"}) expect_proven(family, {ranks, 1, 0});
    expect_proven("double-tree", {ranks, 1, 3});
    expect_proven("one-shot", {ranks, 1, 2});
    expect_proven("two-level", {ranks, ranks, 0});
    if ((ranks & (ranks - 1)) != 0) continue;
    expect_proven("recursive-doubling", {ranks, 1, 0});
    expect_proven("halving-doubling", {ranks, 1, 0});
    expect_proven("two-level", {ranks, 1, 0});
  }
  for (const std::int32_t host : {1, 2, 3, 5, 8}) expect_proven("two-level", {host * 8, host, 0});
}

// As documents call it, and as the command does.
TEST(Generators, TheDoubleBinaryTreeHasTwoNames) {
  EXPECT_EQ(generate_written_out("double-binary-tree", {5, 1, 3}), generate_written_out("double-tree", {5, 1, 3}));
}

TEST(Generators, SayForHowManyRanksTheyAre) {
  const auto refusal = [](std::string_view family, const GeneratorSpec& spec) -> std::string {
    try {
      generate(family, spec);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(refusal("ring", {1, 1, 0}).find("2 to 65536 ranks"), std::string::npos);
  EXPECT_NE(refusal("recursive-doubling", {12, 1, 0}).find("a power of two of ranks, not 12"), std::string::npos);
  EXPECT_NE(refusal("two-level", {24, 8, 0}).find("do not make hosts of 8"), std::string::npos);
  EXPECT_NE(refusal("one-shot", {65, 1, 0}).find("at most 64"), std::string::npos);
  EXPECT_NE(refusal("moebius", {8, 1, 0}).find("none of ring, recursive-doubling"), std::string::npos);
}

// Without instruments, each of these takes about a second and some hundred megabytes; with them, minutes.
TEST(Generators, AreProvenAtAThousandRanks) {
  if (test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  for (const char* family : {"double-tree", "recursive-doubling", "two-level"}) expect_proven(family, {1024, 8, 0});
}

// All of them in the largest form that PLANS of a file had trouble with: a packet for every chunk of every rank.
TEST(Generators, AllPairsAreProvenInManyPieces) {
  if (test::kSanitized) GTEST_SKIP() << "too slow under a sanitizer";
  expect_proven("one-shot", {64, 1, 32});
}

}  // namespace
}  // namespace tutti::plan
