// What a call that is to be refused says of it.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "tutti/error.h"

namespace tutti::test {

// Nothing where it is not refused.
template <typename Act>
std::string refusal(const Act& act) {
  try {
    act();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    return error.what();
  }
  return "";
}

}  // namespace tutti::test
