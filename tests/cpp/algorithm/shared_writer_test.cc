// Whatever way a writer stores, every byte arrives and none beside them.
#include "algorithm/shm/shared_writer.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace tutti {
namespace {

TEST(SharedWriter, CopiesEverySizeAtEveryAlignment) {
  constexpr std::size_t kMost = 40000;
  constexpr std::size_t kGuard = 64;
  constexpr unsigned kSeed = 7;
  std::mt19937 random(kSeed);
  std::vector<std::byte> from(kMost + kGuard);
  for (std::byte& b : from) b = static_cast<std::byte>(random());
  SharedWriter writer;
  // Many writes of one writer: some are measured, the others follow what the last measurement said.
  for (int i = 0; i < 400; ++i) {
    const std::size_t bytes = i < 100 ? static_cast<std::size_t>(i) * 97 : random() % kMost;
    const std::size_t shift = random() % kGuard;
    std::vector<std::byte> to(kMost + 3 * kGuard, std::byte{0xA5});
    writer.copy(to.data() + kGuard + shift, from.data() + shift, bytes);
    ASSERT_EQ(std::memcmp(to.data() + kGuard + shift, from.data() + shift, bytes), 0) << bytes << " bytes, write " << i;
    for (std::size_t k = 0; k < kGuard + shift; ++k) ASSERT_EQ(to[k], std::byte{0xA5}) << "before, write " << i;
    for (std::size_t k = kGuard + shift + bytes; k < to.size(); ++k)
      ASSERT_EQ(to[k], std::byte{0xA5}) << "after, " << i;
  }
}

TEST(SharedWriter, AnEmptyWriteNeedsNoMemory) {
  SharedWriter writer;
  for (int i = 0; i < 40; ++i) writer.copy(nullptr, nullptr, 0);
}

}  // namespace
}  // namespace tutti
