// Element types, reduction operations and collectives, as every layer names them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tutti {

enum class DataType : std::uint8_t {
  kBool,
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kUint64,
  kInt64,
  kFloat8E4M3fn,
  kFloat8E5M2,
  kFloat8E4M3fnuz,
  kFloat8E5M2fnuz,
  kFloat8E8M0fnu,
  kBfloat16,
  kFloat16,
  kFloat32,
  kFloat64,
  kComplex32,   // two float16
  kComplex64,   // two float32
  kComplex128,  // two float64
  kByte,        // opaque: moved, never reduced
};
inline constexpr int kDataTypeCount = 22;

enum class ReduceOp : std::uint8_t { kSum, kAvg, kProduct, kMin, kMax, kBand, kBor, kBxor, kPremulSum };
inline constexpr int kReduceOpCount = 9;

enum class Collective : std::uint8_t {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
  kBarrier,
};
inline constexpr int kCollectiveCount = 9;

// As the peer of a receive: whoever sends first.
inline constexpr int kAnySource = -1;

// Bytes of one element; 1 for kByte.
std::size_t size_of(DataType dtype) noexcept;

// Short names: "f32", "bf16", "c64"; "sum"; "all_reduce".
std::string_view to_string(DataType dtype) noexcept;
std::string_view to_string(ReduceOp op) noexcept;
std::string_view to_string(Collective collective) noexcept;

bool is_floating(DataType dtype) noexcept;  // fp8 to fp64
bool is_complex(DataType dtype) noexcept;
bool is_integral(DataType dtype) noexcept;  // bool and the integers

}  // namespace tutti
