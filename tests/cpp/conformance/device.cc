// The conformance suite of all devices; see device.h.
#include "conformance/device.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "device/reference_reduce.h"
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
    device_.synchronize();
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

// One reduction against the reference, as the header of the CPU's kernels promises it; `in_place`: the source that the
// first destination is, or -1.
void check_reduction(Device& device, std::mt19937& random, DataType dtype, ReduceOp op, std::size_t count, int n_srcs,
                     int n_dsts, int in_place) {
  const std::size_t bytes = count * size_of(dtype);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<std::unique_ptr<Buffer>> srcs, dsts;
  std::vector<const void*> host, from;
  std::vector<void*> to;
  for (int s = 0; s < n_srcs; ++s) {
    inputs.push_back(values(random, dtype, bytes));
    srcs.push_back(std::make_unique<Buffer>(device, inputs.back()));
    from.push_back(srcs.back()->data());
  }
  for (const auto& input : inputs) host.push_back(input.data());
  for (int d = 0; d < n_dsts; ++d) {
    dsts.push_back(std::make_unique<Buffer>(device, std::vector<std::byte>(bytes)));
    to.push_back(d == 0 && in_place >= 0 ? srcs[static_cast<std::size_t>(in_place)]->data() : dsts.back()->data());
  }
  std::vector<std::byte> want(bytes);
  void* expected = want.data();
  reference::reduce(&expected, 1, host.data(), n_srcs, count, dtype, op, n_srcs);
  device.reduce(to.data(), n_dsts, from.data(), n_srcs, count, dtype, op, n_srcs);
  for (int d = 0; d < n_dsts; ++d) {
    const Buffer& at =
        d == 0 && in_place >= 0 ? *srcs[static_cast<std::size_t>(in_place)] : *dsts[static_cast<std::size_t>(d)];
    ASSERT_TRUE(reference::same(dtype, at.read().data(), want.data(), bytes))
        << reference::describe(dtype, op) << " count " << count << " srcs " << n_srcs << " destination " << d
        << " in place " << in_place << " seed " << kSeed;
  }
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

TEST_P(DeviceConformance, ReducesAsTheReferences) {
  Device& device = GetParam().find();
  std::mt19937 random(kSeed);
  EXPECT_TRUE(device.supports(DataType::kFloat32, ReduceOp::kSum));
  EXPECT_FALSE(device.supports(DataType::kByte, ReduceOp::kSum));
  reference::for_each_reduction([&](DataType dtype, ReduceOp op) {
    if (!device.supports(dtype, op)) return;
    for (const std::size_t count : {0, 1, 7, 64, 333}) {
      for (const int n_srcs : {1, 2, 3, 8}) {
        if (HasFatalFailure()) return;
        check_reduction(device, random, dtype, op, count, n_srcs, 1, -1);
        check_reduction(device, random, dtype, op, count, n_srcs, 2, n_srcs - 1);
      }
    }
  });
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceConformance);

}  // namespace tutti::test
