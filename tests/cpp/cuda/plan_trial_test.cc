// Why a plan's trial on GPUs has failed, where several ranks say something.
#include "communicator/plan_trial.h"

#include <gtest/gtest.h>

#include <new>
#include <optional>
#include <string>
#include <vector>

namespace tutti {
namespace {

// The number of the rank whose failure counts; -1: none. A rank without a kind has thrown nothing.
int blamed(const std::vector<std::optional<ErrorKind>>& kinds) {
  std::vector<std::exception_ptr> failures;
  for (const auto& kind : kinds) {
    failures.push_back(kind ? std::make_exception_ptr(Error(*kind, std::to_string(failures.size()))) : nullptr);
  }
  const std::exception_ptr cause = cause_among(failures);
  if (!cause) return -1;
  try {
    std::rethrow_exception(cause);
  } catch (const Error& error) {
    return std::stoi(error.what());
  }
}

TEST(PlanTrial, TheRankThatFailedIsBlamedAndNotThoseThatItAborted) {
  constexpr auto kAborted = ErrorKind::kAborted;
  EXPECT_EQ(blamed({}), -1);
  EXPECT_EQ(blamed({std::nullopt, std::nullopt}), -1);
  EXPECT_EQ(blamed({std::nullopt, kAborted}), 1);
  for (const ErrorKind own : {ErrorKind::kInvalidArgument, ErrorKind::kUnsupported, ErrorKind::kInternal,
                              ErrorKind::kExhausted, ErrorKind::kTimeout, ErrorKind::kMismatch}) {
    EXPECT_EQ(blamed({kAborted, own, kAborted}), 1) << static_cast<int>(own);
    EXPECT_EQ(blamed({own, kAborted, own}), 0) << static_cast<int>(own);
  }
  // Whom the others miss.
  EXPECT_EQ(blamed({ErrorKind::kPeerLost, ErrorKind::kTimeout, ErrorKind::kInternal}), 2);
  EXPECT_EQ(blamed({ErrorKind::kInternal, ErrorKind::kUnsupported, kAborted}), 1);
}

TEST(PlanTrial, WhatIsNoErrorOfTuttisIsACause) {
  const auto aborted = std::make_exception_ptr(Error(ErrorKind::kAborted, "by rank 1"));
  const auto own = std::make_exception_ptr(std::bad_alloc());
  EXPECT_EQ(cause_among({aborted, own}), own);
}

TEST(PlanTrial, WhatCannotBeTriedIsNotWrong) {
  for (const ErrorKind kind : {ErrorKind::kInvalidArgument, ErrorKind::kUnsupported}) {
    EXPECT_TRUE(refuses(Error(kind, "")));
  }
  for (const ErrorKind kind : {ErrorKind::kMismatch, ErrorKind::kTimeout, ErrorKind::kPeerLost, ErrorKind::kAborted,
                               ErrorKind::kExhausted, ErrorKind::kInternal}) {
    EXPECT_FALSE(refuses(Error(kind, "")));
  }
}

}  // namespace
}  // namespace tutti
