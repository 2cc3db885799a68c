// Anonymous files and their mappings: sharing, sealing, holes, private replacements.
#include "base/mapping.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

#include "arena/memory.h"
#include "support/child_process.h"
#include "tutti/error.h"

namespace tutti {
namespace {

TEST(Mapping, TwoMappingsOfOneFileShowTheSameBytes) {
  const UniqueFd fd = create_memfd("test", 8192);
  const Mapping a = Mapping::shared(fd.get(), 8192);
  const Mapping b = Mapping::shared(fd.get(), 8192);
  ASSERT_NE(a.data(), b.data());
  a.data()[5000] = std::byte{42};
  EXPECT_EQ(b.data()[5000], std::byte{42});
}

TEST(Mapping, MovingTransfersOwnership) {
  const UniqueFd fd = create_memfd("test", 4096);
  Mapping a = Mapping::shared(fd.get(), 4096);
  std::byte* const data = a.data();
  Mapping b = std::move(a);
  EXPECT_EQ(b.data(), data);
  b = Mapping::shared(fd.get(), 4096);
  EXPECT_EQ(b.bytes(), 4096u);
  b.reset();
  EXPECT_FALSE(b);
}

TEST(Mapping, LargeOnesAreAlignedForHugePagesAndLeaveNothingBehind) {
  const UniqueFd fd = create_memfd("test", 3 * kHugePageBytes + 4096);
  for (int i = 0; i < 20; ++i) {
    const Mapping mapping = Mapping::shared(fd.get(), 3 * kHugePageBytes + 100);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(mapping.data()) % kHugePageBytes, 0u);
    mapping.data()[mapping.bytes() - 1] = std::byte{1};
  }
}

TEST(Mapping, RefusalsAreErrorsOfTheirKind) {
  try {
    Mapping::shared(-1, 4096);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kExhausted);
  }
  EXPECT_THROW(Mapping::shared(0, 0), Error);
}

TEST(Memfd, IsSparseClosedOnExecAndCannotShrink) {
  const std::size_t bytes = std::size_t{1} << 40;
  const UniqueFd fd = create_memfd("test", bytes);
  EXPECT_EQ(file_bytes(fd.get()), bytes);
  EXPECT_EQ(resident_bytes(fd.get()), 0u);
  EXPECT_NE(::ftruncate(fd.get(), 4096), 0);
  EXPECT_EQ(file_bytes(fd.get()), bytes);
}

TEST(Memfd, AFileSizeLimitIsAnErrorAndNotASignal) {
  const int code = test::run_in_child([] {
    const rlimit limit{1 << 20, 1 << 20};
    if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return 1;
    try {
      create_memfd("test", 2 << 20);
      return 2;
    } catch (const Error& error) {
      return error.kind() == ErrorKind::kExhausted ? 0 : 3;
    }
  });
  EXPECT_EQ(code, 0);
}

TEST(Memfd, PunchingAHoleReturnsItsMemoryAndOnlyThat) {
  const std::size_t bytes = 64 << 10;
  const UniqueFd fd = create_memfd("test", bytes);
  const Mapping mapping = Mapping::shared(fd.get(), bytes);
  std::memset(mapping.data(), 7, bytes);
  ASSERT_EQ(resident_bytes(fd.get()), bytes);
  ASSERT_TRUE(punch_hole(fd.get(), 16 << 10, 32 << 10));
  EXPECT_EQ(resident_bytes(fd.get()), bytes / 2);
  EXPECT_EQ(mapping.data()[(16 << 10) - 1], std::byte{7});
  EXPECT_EQ(mapping.data()[16 << 10], std::byte{0});
  EXPECT_EQ(mapping.data()[48 << 10], std::byte{7});
  EXPECT_FALSE(punch_hole(-1, 0, 4096));
}

TEST(Replacing, APrivateCopyShowsTheFileAndKeepsItsWrites) {
  const UniqueFd fd = create_memfd("test", 8192);
  const Mapping mapping = Mapping::shared(fd.get(), 8192);
  const Mapping other = Mapping::shared(fd.get(), 8192);
  mapping.data()[4096] = std::byte{3};
  ASSERT_TRUE(replace_by_private_copy(mapping.data() + 4096, 4096, fd.get(), 4096));
  EXPECT_EQ(mapping.data()[4096], std::byte{3});
  mapping.data()[4096] = std::byte{4};
  EXPECT_EQ(other.data()[4096], std::byte{3});
  mapping.data()[0] = std::byte{5};
  EXPECT_EQ(other.data()[0], std::byte{5}) << "the page before stays shared";
}

TEST(Replacing, PrivateMemoryStartsEmptyAndDropsItsPages) {
  const UniqueFd fd = create_memfd("test", 4096);
  const Mapping mapping = Mapping::shared(fd.get(), 4096);
  mapping.data()[0] = std::byte{3};
  ASSERT_TRUE(replace_by_private_memory(mapping.data(), 4096));
  EXPECT_EQ(mapping.data()[0], std::byte{0});
  mapping.data()[0] = std::byte{9};
  drop_private_pages(mapping.data(), 4096);
  EXPECT_EQ(mapping.data()[0], std::byte{0});
}

TEST(Replacing, ARefusedReplacementDoesNotStayShared) {
  const UniqueFd fd = create_memfd("test", 4096);
  const Mapping mapping = Mapping::shared(fd.get(), 4096);
  EXPECT_FALSE(replace_by_private_copy(mapping.data(), 4096, -1, 0));
  // Reading it through a system call fails instead of killing the process.
  std::array<int, 2> ends{-1, -1};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const UniqueFd read_end(ends[0]);
  const UniqueFd write_end(ends[1]);
  EXPECT_EQ(::write(write_end.get(), mapping.data(), 1), -1);
  EXPECT_EQ(errno, EFAULT);
}

}  // namespace
}  // namespace tutti
