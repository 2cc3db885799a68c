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
#include "hwy/targets.h"

namespace tutti {
namespace {

constexpr std::array<std::size_t, 17> kCounts{0, 1, 2, 3, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 1000, 4097};
constexpr std::array<int, 7> kSourceCounts{1, 2, 3, 4, 5, 8, 17};
constexpr std::byte kGuard{0xA5};
constexpr std::size_t kGuardBytes = 128;
constexpr std::uint32_t kSeed = 20240229;

std::size_t element_size(DataType dtype) {
  constexpr std::array<std::size_t, kDataTypeCount> kSizes{1, 1, 1, 2, 2, 4, 4, 8, 8, 1,  1,
                                                           1, 1, 1, 2, 2, 4, 8, 4, 8, 16, 1};
  return kSizes[static_cast<std::size_t>(dtype)];
}

std::string describe(DataType dtype, ReduceOp op) {
  constexpr std::array<const char*, kDataTypeCount> kTypes{
      "bool",        "u8",          "i8",         "u16",  "i16", "u32", "i32", "u64", "i64", "f8_e4m3fn", "f8_e5m2",
      "f8_e4m3fnuz", "f8_e5m2fnuz", "f8_e8m0fnu", "bf16", "f16", "f32", "f64", "c32", "c64", "c128",      "byte"};
  constexpr std::array<const char*, kReduceOpCount> kOps{"sum",  "avg", "prod", "min",   "max",
                                                         "band", "bor", "bxor", "premul"};
  return std::string(kTypes[static_cast<std::size_t>(dtype)]) + " " + kOps[static_cast<std::size_t>(op)];
}

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

// Values that matter: for floats mostly of like size (so that sums round) among any bit patterns, which include NaNs,
// infinities, subnormals and zeros of both signs.
void fill(std::mt19937& random, DataType dtype, std::byte* data, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<std::byte>(random());
  if (dtype == DataType::kBool) {
    for (std::size_t i = 0; i < bytes; ++i)
      data[i] = (data[i] & std::byte{3}) == std::byte{0} ? data[i] : std::byte{random() % 2 == 0};
    return;
  }
  reference::with_traits(dtype, [&]<typename Traits>(Traits) {
    using S = typename Traits::Stored;
    using V = typename Traits::Value;
    if constexpr (std::is_floating_point_v<V>) {
      constexpr std::array<double, 8> kSpecial{0.0, -0.0, INFINITY, -INFINITY, NAN, 1.0, 1e-40, 6e-8};
      for (std::size_t i = 0; i < bytes / sizeof(S); ++i) {
        const std::uint32_t kind = random() % 16;
        const double value =
            std::ldexp(static_cast<double>(random()) - 2147483648.0, -31 + static_cast<int>(random() % 4));
        if (kind == 0) reference::store<S>(data, i, Traits::out(static_cast<V>(kSpecial[random() % kSpecial.size()])));
        if (kind > 1) reference::store<S>(data, i, Traits::out(static_cast<V>(value)));
      }
    }
  });
}

// Equal bits; two NaNs are equal whatever their payload, which processors choose differently.
::testing::AssertionResult same(DataType dtype, const std::byte* got, const std::byte* want, std::size_t bytes) {
  auto result = ::testing::AssertionSuccess();
  if (bytes == 0 || std::memcmp(got, want, bytes) == 0) return result;
  reference::with_traits(dtype, [&]<typename Traits>(Traits) {
    using S = typename Traits::Stored;
    for (std::size_t i = 0; i < bytes / sizeof(S) && result; ++i) {
      const S g = reference::load<S>(got, i), w = reference::load<S>(want, i);
      if (std::memcmp(&g, &w, sizeof(S)) == 0) continue;
      if constexpr (std::is_floating_point_v<typename Traits::Value>) {
        if (std::isnan(Traits::in(g)) && std::isnan(Traits::in(w))) continue;
      }
      result = ::testing::AssertionFailure()
               << "scalar " << i << ": got " << ::testing::PrintToString(g) << ", want " << ::testing::PrintToString(w);
    }
  });
  return result;
}

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
    const std::size_t bytes = count * element_size(dtype);
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
    for (int t = 0; t < kDataTypeCount; ++t) {
      for (int o = 0; o < kReduceOpCount; ++o) {
        const auto dtype = static_cast<DataType>(t);
        const auto op = static_cast<ReduceOp>(o);
        if (cpu::supports(dtype, op)) f(dtype, op);
      }
    }
  }

  cpu::KernelTable table_;
  std::mt19937 random_{kSeed};
};

TEST_P(KernelsTest, HasAKernelForWhatItSupportsAndNothingElse) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const auto dtype = static_cast<DataType>(t);
      const auto op = static_cast<ReduceOp>(o);
      EXPECT_EQ(table_.at(dtype, op) != nullptr, cpu::supports(dtype, op)) << describe(dtype, op);
    }
  }
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
    if (element_size(dtype) != 1) return;
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
        const std::size_t bytes = count * element_size(dtype);
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
