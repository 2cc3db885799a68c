// Names, sizes and classes of the enumerations, and the text of errors.
#include "tutti/types.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <set>
#include <string>

#include "tutti/error.h"

namespace tutti {
namespace {

TEST(Types, EveryDataTypeHasItsOwnNameASizeAndOneClass) {
  std::set<std::string_view> names;
  for (int i = 0; i < kDataTypeCount; ++i) {
    const auto dtype = static_cast<DataType>(i);
    EXPECT_TRUE(names.insert(to_string(dtype)).second) << to_string(dtype);
    EXPECT_NE(to_string(dtype), "unknown");
    EXPECT_GE(size_of(dtype), 1u);
    const int classes = is_floating(dtype) + is_complex(dtype) + is_integral(dtype);
    EXPECT_EQ(classes, dtype == DataType::kByte ? 0 : 1) << to_string(dtype);
  }
}

TEST(Types, SizesAreThoseOfTheElements) {
  EXPECT_EQ(size_of(DataType::kBool), 1u);
  EXPECT_EQ(size_of(DataType::kFloat8E8M0fnu), 1u);
  EXPECT_EQ(size_of(DataType::kBfloat16), 2u);
  EXPECT_EQ(size_of(DataType::kFloat32), 4u);
  EXPECT_EQ(size_of(DataType::kInt64), 8u);
  EXPECT_EQ(size_of(DataType::kComplex32), 4u);
  EXPECT_EQ(size_of(DataType::kComplex64), 8u);
  EXPECT_EQ(size_of(DataType::kComplex128), 16u);
}

TEST(Types, NamesAreThoseOfTheMessages) {
  EXPECT_EQ(to_string(DataType::kFloat32), "f32");
  EXPECT_EQ(to_string(DataType::kBfloat16), "bf16");
  EXPECT_EQ(to_string(ReduceOp::kPremulSum), "premul_sum");
  EXPECT_EQ(to_string(Collective::kAllReduce), "all_reduce");
  EXPECT_EQ(to_string(Collective::kBarrier), "barrier");
}

TEST(Types, ValuesOfAnotherProcessBeyondTheEnumerationAreHarmless) {
  EXPECT_EQ(to_string(static_cast<DataType>(200)), "unknown");
  EXPECT_EQ(to_string(static_cast<ReduceOp>(200)), "unknown");
  EXPECT_EQ(to_string(static_cast<Collective>(200)), "unknown");
  EXPECT_EQ(size_of(static_cast<DataType>(200)), 1u);
  EXPECT_FALSE(is_floating(static_cast<DataType>(200)));
}

TEST(Error, CarriesKindAndText) {
  try {
    throw_error(ErrorKind::kMismatch, "rank 0 differs");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMismatch);
    EXPECT_STREQ(error.what(), "rank 0 differs");
    EXPECT_EQ(to_string(error.kind()), "mismatch");
  }
}

TEST(Error, OfASystemCallNamesTheCallAndTheReason) {
  try {
    throw_system_error(ErrorKind::kExhausted, "memfd_create", ENOMEM);
    FAIL();
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "memfd_create: Cannot allocate memory");
  }
  EXPECT_EQ(describe_errno(EMFILE).find("Too many open files (this process may have "), 0u);
  EXPECT_NE(describe_errno(EMFILE).find("ulimit -n"), std::string::npos);
}

}  // namespace
}  // namespace tutti
