// The conformance suite of all devices; see device.h.
#include "conformance/device.h"

#include <cstdint>
#include <random>
#include <vector>

#include "device/reference_values.h"

namespace tutti::test {
namespace {

constexpr std::uint32_t kSeed = 20250331;

// Memory of the device, written and read by its copies.
class Buffer {
 public:
  Buffer(Device& device, const std::vector<std::byte>& bytes)
      : device_(device), bytes_(bytes.size()), data_(device.allocate(bytes_)) {
    device_.copy(data_, bytes.data(), bytes_);
  }
  ~Buffer() { device_.deallocate(data_, bytes_); }
  Buffer(const Buffer&) = delete;

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::vector<std::byte> read() const {
    std::vector<std::byte> bytes(bytes_);
    device_.copy(bytes.data(), data_, bytes_);
    return bytes;
  }

 private:
  Device& device_;
  std::size_t bytes_;
  void* data_;
};

std::vector<std::byte> values(std::mt19937& random, DataType dtype, std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  reference::fill(random, dtype, made.data(), bytes);
  return made;
}

}  // namespace

TEST_P(DeviceConformance, HasItsName) { EXPECT_EQ(GetParam().find().name(), GetParam().name); }

TEST_P(DeviceConformance, CopiesBringAllBytes) {
  Device& device = GetParam().find();
  std::mt19937 random(kSeed);
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 4097, 1'000'003}) {
    const std::vector<std::byte> given = values(random, DataType::kByte, bytes);
    const Buffer first(device, given), second(device, std::vector<std::byte>(bytes));
    EXPECT_EQ(first.read(), given) << bytes;
    device.copy(second.data(), first.data(), bytes);
    EXPECT_EQ(second.read(), given) << bytes;
  }
}

TEST_P(DeviceConformance, MemoryIsApart) {
  Device& device = GetParam().find();
  const Buffer first(device, std::vector<std::byte>(100, std::byte{1}));
  const Buffer second(device, std::vector<std::byte>(100, std::byte{2}));
  EXPECT_EQ(first.read(), std::vector<std::byte>(100, std::byte{1}));
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(first.data()) % 16, 0U) << "of the widest element";
  EXPECT_EQ(device.index_of(first.data()), device.index_of(second.data()));
}

TEST_P(DeviceConformance, MoreMemoryThanThereIsRaises) {
  try {
    GetParam().find().allocate(std::size_t{1} << 62);
    FAIL() << "a device with four exabytes";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kExhausted) << error.what();
  }
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

}  // namespace tutti::test
