// How often it is tried whether two kernels meet, and what comes of it.
#include "communicator/cuda/twin_trial.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tutti::cuda {
namespace {

// The trials that were made, a letter each, and "+" if the kernels meet.
std::string tried(const std::vector<Twins>& outcomes) {
  std::string text;
  const bool meet = twins_meet([&] {
    const Twins how = outcomes.at(text.size());
    text += how == Twins::kMet ? 'm' : how == Twins::kMissed ? '-' : 'r';
    return how;
  });
  return text + (meet ? "+" : "");
}

TEST(TwinTrial, AMissIsTriedAgain) {
  EXPECT_EQ(tried({Twins::kMet}), "m+");
  EXPECT_EQ(tried({Twins::kMissed, Twins::kMet}), "-m+");
  EXPECT_EQ(tried({Twins::kMissed, Twins::kMissed, Twins::kMet}), "--m+");
  EXPECT_EQ(tried({Twins::kMissed, Twins::kMissed, Twins::kMissed}), "---");
}

TEST(TwinTrial, WhatTheGpuRefusesIsNot) {
  EXPECT_EQ(tried({Twins::kRefused}), "r");
  EXPECT_EQ(tried({Twins::kMissed, Twins::kRefused}), "-r");
}

}  // namespace
}  // namespace tutti::cuda
