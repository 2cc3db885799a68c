// What collectives should give, in double precision, on data that every type holds exactly.
#pragma once

#include <bit>
#include <cmath>
#include <complex>
#include <cstring>
#include <vector>

#include "tutti/types.h"

namespace tutti::test {

using Value = std::complex<double>;
using Bytes = std::vector<std::byte>;

inline float from_bf16(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T>
void put(Bytes& bytes, std::size_t i, T value) {
  std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
}

template <class T>
T get(const std::byte* bytes, std::size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
  return value;
}

inline void encode(Bytes& bytes, std::size_t i, DataType dtype, Value v) {
  switch (dtype) {
    case DataType::kUint8:
      return put(bytes, i, static_cast<std::uint8_t>(v.real()));
    case DataType::kInt32:
      return put(bytes, i, static_cast<std::int32_t>(v.real()));
    case DataType::kBfloat16:
      return put(bytes, i, to_bf16(static_cast<float>(v.real())));
    case DataType::kFloat32:
      return put(bytes, i, static_cast<float>(v.real()));
    case DataType::kComplex64:
      return put(bytes, i, std::complex<float>(v));
    default:
      std::abort();
  }
}

inline Value decode(const std::byte* bytes, std::size_t i, DataType dtype) {
  switch (dtype) {
    case DataType::kUint8:
      return get<std::uint8_t>(bytes, i);
    case DataType::kInt32:
      return get<std::int32_t>(bytes, i);
    case DataType::kBfloat16:
      return from_bf16(get<std::uint16_t>(bytes, i));
    case DataType::kFloat32:
      return get<float>(bytes, i);
    case DataType::kComplex64:
      return get<std::complex<float>>(bytes, i);
    default:
      std::abort();
  }
}

// Element i of rank r's input number `block`.
inline Value element(DataType dtype, ReduceOp op, int r, int block, std::size_t i) {
  const auto x = static_cast<unsigned>((i * 7 + static_cast<std::size_t>(r) * 3 + static_cast<std::size_t>(block) * 5));
  const double small = x % 3;
  if (dtype == DataType::kComplex64) return {small, static_cast<double>((x / 3) % 3)};
  if (op == ReduceOp::kProduct) return 1.0 + x % 2;
  return dtype == DataType::kUint8 || dtype == DataType::kInt32 ? x % 251 : x % 17;
}

inline Value apply(DataType dtype, ReduceOp op, Value a, Value b) {
  const auto wrap = [dtype](double v) { return dtype == DataType::kUint8 ? std::fmod(v, 256.0) : v; };
  const auto bits = [](Value v) { return static_cast<long>(v.real()); };
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return dtype == DataType::kComplex64 ? a + b : wrap((a + b).real());
    case ReduceOp::kProduct:
      return dtype == DataType::kComplex64 ? a * b : wrap((a * b).real());
    case ReduceOp::kMin:
      return std::min(a.real(), b.real());
    case ReduceOp::kMax:
      return std::max(a.real(), b.real());
    case ReduceOp::kBand:
      return static_cast<double>(bits(a) & bits(b));
    case ReduceOp::kBor:
      return static_cast<double>(bits(a) | bits(b));
    case ReduceOp::kBxor:
      return static_cast<double>(bits(a) ^ bits(b));
    default:
      std::abort();
  }
}

// Element i of block `block` after the reduction over all ranks.
inline Value reduced(DataType dtype, ReduceOp op, int ranks, int block, std::size_t i) {
  Value sum = element(dtype, op, 0, block, i);
  for (int r = 1; r < ranks; ++r) sum = apply(dtype, op, sum, element(dtype, op, r, block, i));
  if (op != ReduceOp::kAvg) return sum;
  const Value average = sum / static_cast<double>(ranks);
  return dtype <= DataType::kInt64 ? std::trunc(average.real()) : average;  // integers come first in the enumeration
}

// Averages are rounded to the type, `roundings` times; all else is exact.
inline bool close(DataType dtype, ReduceOp op, Value got, Value expected, int roundings = 1) {
  if (op != ReduceOp::kAvg) return got == expected;
  const double unit = dtype == DataType::kBfloat16 ? roundings / 256.0 : 1e-6;
  return std::abs(got - expected) <= unit * std::abs(expected);
}

inline Bytes input_of(DataType dtype, ReduceOp op, int r, int block, std::size_t count) {
  Bytes bytes(count * size_of(dtype));
  for (std::size_t i = 0; i < count; ++i) encode(bytes, i, dtype, element(dtype, op, r, block, i));
  return bytes;
}

// The first element that differs, or -1.
inline long first_difference(const std::byte* got, DataType dtype, ReduceOp op, int ranks, int block, std::size_t count,
                             int roundings = 1) {
  for (std::size_t i = 0; i < count; ++i) {
    const Value expected = reduced(dtype, op, ranks, block, i);
    if (!close(dtype, op, decode(got, i, dtype), expected, roundings)) return static_cast<long>(i);
  }
  return -1;
}

}  // namespace tutti::test
