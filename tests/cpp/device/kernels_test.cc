// Every reduction kernel of every instruction set of this machine against the reference, bit for bit.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <random>
#include <string>
#include <vector>

// As in the kernels: which instruction sets exist.
#include "device/cpu/kernels_targets.h"
//
#include "device/cpu/kernel_table.h"
#include "device/cpu/kernels.h"
#include "device/reference_reduce.h"
#include "device/reference_values.h"
#include "hwy/targets.h"

namespace tutti {
namespace {

using reference::describe;
using reference::fill;
using reference::same;

constexpr std::array<std::size_t, 17> kCounts{0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4097};
constexpr std::array<int, 7> kSourceCounts{1, 2, 3, 4, 5, 8, 17};
constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 128;
constexpr std::uint32_t kSeed = 20240229;

// Memory with guard bytes on both sides and a chosen misalignment.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t misalignment)
      : bytes_(bytes), offset_(kGuardBytes + misalignment), memory_(bytes + 2 * kGuardBytes + 64, kGuard) {
    offset_ += (64 - reinterpret_cast<std::uintptr_t>(memory_.data() + kGuardBytes) % 64) % 64;
  }
  std::byte* data() { return memory_.data() + offset_; }
  bool intact() const {
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    return std::all_of(memory_.begin(), memory_.begin() + static_cast<std::ptrdiff_t>(offset_), is_guard) &&
           std::all_of(memory_.begin() + static_cast<std::ptrdiff_t>(offset_ + bytes_), memory_.end(), is_guard);
  }

 private:
  std::size_t bytes_;
  std::size_t offset_;
  std::vector<std::byte> memory_;
};

// Runs each test on each instruction set that this machine has, the portable one included.
class KernelsTest : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    table_ = cpu::make_kernel_table();
    ASSERT_STREQ(table_.target, hwy::TargetName(GetParam()));
  }
  void TearDown() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  // One reduction into fresh memory; `in_place`: the source that the first destination is, or -1.
  void check(DataType dtype, ReduceOp op, std::size_t count, int n_srcs, int n_dsts, std::size_t misalignment,
             int divisor, int in_place = -1) {
    const std::size_t bytes = count * size_of(dtype);
    std::vector<Guarded> srcs, dsts;
    std::vector<const void*> src_pointers;
    std::vector<void*> dst_pointers;
    for (int s = 0; s < n_srcs; ++s) {
      srcs.emplace_back(bytes, misalignment * static_cast<std::size_t>(s + 1) % 64);
      fill(random_, dtype, srcs.back().data(), bytes);
    }
    for (int d = 0; d < n_dsts; ++d) dsts.emplace_back(bytes, misalignment * static_cast<std::size_t>(d + 3) % 64);
    for (Guarded& s : srcs) src_pointers.push_back(s.data());
    for (Guarded& d : dsts) dst_pointers.push_back(d.data());
    if (in_place >= 0) dst_pointers[0] = srcs[static_cast<std::size_t>(in_place)].data();

    std::vector<std::byte> want(bytes);
    void* want_pointer = want.data();
    reference::reduce(&want_pointer, 1, src_pointers.data(), n_srcs, count, dtype, op, divisor);
    table_.at(dtype, op)(dst_pointers.data(), n_dsts, src_pointers.data(), n_srcs, count, divisor);
    for (void* dst : dst_pointers) {
      ASSERT_TRUE(same(dtype, static_cast<std::byte*>(dst), want.data(), bytes))
          << describe(dtype, op) << " count " << count << " srcs " << n_srcs << " dsts " << n_dsts << " misaligned "
          << misalignment << " in place " << in_place << " seed " << kSeed;
    }
    for (const Guarded& s : srcs) ASSERT_TRUE(s.intact()) << describe(dtype, op) << " count " << count;
    for (const Guarded& d : dsts) ASSERT_TRUE(d.intact()) << describe(dtype, op) << " count " << count;
  }

  template <typename F>
  void for_each_reduction(F f) {
    reference::for_each_reduction([&](DataType dtype, ReduceOp op) {
      if (cpu::supports(dtype, op)) f(dtype, op);
    });
  }

  cpu::KernelTable table_;
  std::mt19937 random_{kSeed};
};

TEST_P(KernelsTest, HasAKernelForWhatItSupportsAndNothingElse) {
  reference::for_each_reduction([this](DataType dtype, ReduceOp op) {
    EXPECT_EQ(table_.at(dtype, op) != nullptr, cpu::supports(dtype, op)) << describe(dtype, op);
  });
}

TEST_P(KernelsTest, EveryCountAtOddAddresses) {
  for_each_reduction([this](DataType dtype, ReduceOp op) {
    for (const std::size_t count : kCounts) {
      if (HasFatalFailure()) return;
      check(dtype, op, count, 2, 1, 0, 2);
      check(dtype, op, count, 2, 2, 1, 3);
    }
  });
}

TEST_P(KernelsTest, EveryNumberOfSourcesAndDestinations) {
  for_each_reduction([this](DataType dtype, ReduceOp op) {
    for (const int n_srcs : kSourceCounts) {
      for (int n_dsts = 1; n_dsts <= 3; ++n_dsts) {
        for (const std::size_t count : {std::size_t{1}, std::size_t{15}, std::size_t{100}, std::size_t{333}}) {
          if (HasFatalFailure()) return;
          check(dtype, op, count, n_srcs, n_dsts, static_cast<std::size_t>(n_dsts), n_srcs);
        }
      }
    }
  });
}

TEST_P(KernelsTest, DestinationIsOneOfTheSources) {
  for_each_reduction([this](DataType dtype, ReduceOp op) {
    for (const int n_srcs : {1, 2, 3, 4, 6}) {
      for (int in_place = 0; in_place < n_srcs; ++in_place) {
        if (HasFatalFailure()) return;
        check(dtype, op, 333, n_srcs, 1, 5, n_srcs, in_place);
        check(dtype, op, 333, n_srcs, 2, 0, n_srcs, in_place);
      }
    }
  });
}

// The 8-bit types: all pairs of codes.
TEST_P(KernelsTest, AllPairsOfBytes) {
  std::vector<std::uint8_t> a(65536), b(65536), got(65536), want(65536);
  for (std::size_t i = 0; i < a.size(); ++i) {
    a[i] = static_cast<std::uint8_t>(i);
    b[i] = static_cast<std::uint8_t>(i >> 8);
  }
  const void* srcs[] = {a.data(), b.data()};
  for_each_reduction([&](DataType dtype, ReduceOp op) {
    if (size_of(dtype) != 1) return;
    void* dst = got.data();
    table_.at(dtype, op)(&dst, 1, srcs, 2, a.size(), 3);
    dst = want.data();
    reference::reduce(&dst, 1, srcs, 2, a.size(), dtype, op, 3);
    EXPECT_TRUE(
        same(dtype, reinterpret_cast<std::byte*>(got.data()), reinterpret_cast<std::byte*>(want.data()), got.size()))
        << describe(dtype, op);
  });
}

// bf16 and fp16: all codes come back as they were, NaNs as NaNs; and sums round ties to even, overflow to infinity.
TEST_P(KernelsTest, AllHalfCodesAndTheirRounding) {
  std::vector<std::uint16_t> codes(65536), got(65536), want(65536);
  for (std::size_t i = 0; i < codes.size(); ++i) codes[i] = static_cast<std::uint16_t>(i);
  for (const DataType dtype : {DataType::kBfloat16, DataType::kFloat16}) {
    const void* srcs[] = {codes.data(), nullptr};
    void* dst = got.data();
    table_.at(dtype, ReduceOp::kSum)(&dst, 1, srcs, 1, codes.size(), 1);
    EXPECT_TRUE(same(dtype, reinterpret_cast<std::byte*>(got.data()), reinterpret_cast<std::byte*>(codes.data()),
                     2 * codes.size()));
    // Each code with others near to it in size, so that every kind of tie occurs.
    for (const int distance : {1, 3, 0x80, 0x480, 0x501, 0x3C0, 0x8000, 0x8001, 0x2C01}) {
      std::vector<std::uint16_t> other(codes);
      for (auto& c : other) c = static_cast<std::uint16_t>(c + distance);
      srcs[1] = other.data();
      for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
        dst = got.data();
        table_.at(dtype, op)(&dst, 1, srcs, 2, codes.size(), 3);
        dst = want.data();
        reference::reduce(&dst, 1, srcs, 2, codes.size(), dtype, op, 3);
        EXPECT_TRUE(same(dtype, reinterpret_cast<std::byte*>(got.data()), reinterpret_cast<std::byte*>(want.data()),
                         2 * codes.size()))
            << describe(dtype, op) << " distance " << distance;
      }
    }
  }
}

TEST_P(KernelsTest, DividingByAPowerOfTwoGivesTheBitsOfADivision) {
  for (const DataType dtype : {DataType::kFloat32, DataType::kFloat64, DataType::kBfloat16, DataType::kFloat16}) {
    for (const int divisor : {1, 2, 4, 64, 3, 1000}) check(dtype, ReduceOp::kAvg, 4097, 2, 1, 0, divisor);
  }
}

TEST_P(KernelsTest, Scale) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    const auto dtype = static_cast<DataType>(t);
    ASSERT_EQ(table_.scale_of(dtype) != nullptr, cpu::supports(dtype, ReduceOp::kPremulSum));
    if (table_.scale_of(dtype) == nullptr) continue;
    for (const std::size_t count : kCounts) {
      for (const double factor : {1.0 / 3, -2.0, 1e-6}) {
        const std::size_t bytes = count * size_of(dtype);
        Guarded src(bytes, 3), dst(bytes, 6);
        fill(random_, dtype, src.data(), bytes);
        std::vector<std::byte> want(bytes);
        reference::scale(want.data(), src.data(), count, dtype, factor);
        table_.scale_of(dtype)(dst.data(), src.data(), count, factor);
        ASSERT_TRUE(same(dtype, dst.data(), want.data(), bytes))
            << describe(dtype, ReduceOp::kPremulSum) << " " << count;
        ASSERT_TRUE(dst.intact() && src.intact());
        table_.scale_of(dtype)(src.data(), src.data(), count, factor);
        ASSERT_TRUE(same(dtype, src.data(), want.data(), bytes)) << "in place";
      }
    }
  }
}

TEST_P(KernelsTest, StreamingCopyStaysInBounds) {
  for (const std::size_t bytes : {0, 1, 63, 64, 65, 255, 256, 257, 4096, 100003}) {
    for (const std::size_t misalignment : {0, 1, 32, 63}) {
      Guarded src(bytes, 7), dst(bytes, misalignment);
      fill(random_, DataType::kUint8, src.data(), bytes);
      table_.copy_streaming(dst.data(), src.data(), bytes);
      ASSERT_EQ(std::memcmp(dst.data(), src.data(), bytes), 0) << bytes;
      ASSERT_TRUE(dst.intact()) << bytes;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, KernelsTest, ::testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& target) { return std::string(hwy::TargetName(target.param)); });

TEST(Kernels, NamesItsInstructionSet) { EXPECT_STRNE(cpu::target_name(), ""); }

TEST(Kernels, NanFactorStaysNan) {
  // A NaN whose payload lies where rounding to bf16 would carry out of the mantissa.
  const std::uint64_t bits = 0x7FFFFFFFFFFFFFFF;
  double factor;
  std::memcpy(&factor, &bits, sizeof(factor));
  std::vector<std::uint16_t> x(40, 0x3F80);
  cpu::scale(x.data(), x.data(), x.size(), DataType::kBfloat16, factor);
  for (const std::uint16_t code : x) EXPECT_TRUE(reference::is_nan_code(reference::kBf16, code)) << code;
}

TEST(Kernels, BoolIsLogic) {
  const std::uint8_t a[] = {0, 1, 0, 1, 2}, b[] = {0, 0, 1, 1, 1};
  const void* srcs[] = {a, b};
  std::uint8_t out[5];
  void* dst = out;
  cpu::reduce(&dst, 1, srcs, 2, 5, DataType::kBool, ReduceOp::kSum);
  EXPECT_EQ(std::vector<int>(out, out + 5), (std::vector<int>{0, 1, 1, 1, 1}));
  cpu::reduce(&dst, 1, srcs, 2, 5, DataType::kBool, ReduceOp::kProduct);
  EXPECT_EQ(std::vector<int>(out, out + 5), (std::vector<int>{0, 0, 0, 1, 1}));
  cpu::reduce(&dst, 1, srcs, 2, 5, DataType::kBool, ReduceOp::kBxor);
  EXPECT_EQ(std::vector<int>(out, out + 5), (std::vector<int>{0, 1, 1, 0, 0}));
}

}  // namespace
}  // namespace tutti
