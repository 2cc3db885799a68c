#include "nccl/scalars.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace tutti::nccl {
namespace {

template <class T>
T read(const void* scalar) noexcept {
  T value{};
  std::memcpy(&value, scalar, sizeof(value));
  return value;
}

// IEEE binary16: exact in a double.
double half(std::uint16_t bits) noexcept {
  const int exponent = bits >> 10 & 31;
  const double fraction = bits & 1023;
  const double sign = (bits & 0x8000) != 0 ? -1.0 : 1.0;
  if (exponent == 31) return fraction == 0 ? sign * INFINITY : NAN;
  return sign * (exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25));
}

}  // namespace

std::optional<Scaled> scaled_of(const void* scalar, ncclDataType_t type, ncclScalarResidence_t where) noexcept {
  if (scalar == nullptr) return std::nullopt;
  Scaled scaled{type, 1.0, nullptr};
  const bool on_host = where == ncclScalarHostImmediate;
  if (!on_host && where != ncclScalarDevice) return std::nullopt;
  if (!on_host) scaled.device_factor = scalar;
  switch (type) {
    case ncclFloat16:
      if (on_host) scaled.factor = half(read<std::uint16_t>(scalar));
      return scaled;
    case ncclBfloat16:
      if (on_host) scaled.factor = std::bit_cast<float>(std::uint32_t{read<std::uint16_t>(scalar)} << 16);
      return scaled;
    case ncclFloat32:
      if (on_host) scaled.factor = read<float>(scalar);
      return scaled;
    case ncclFloat64:
      if (on_host) scaled.factor = read<double>(scalar);
      return scaled;
    default:
      // Other types are never scaled by Tutti; known all the same, so that the report says why.
      scaled.device_factor = nullptr;
      return scaled;
  }
}

void ScaledSums::add(ncclRedOp_t op, const Scaled& scaled) {
  const std::lock_guard lock(mutex_);
  made_[op] = scaled;
}

void ScaledSums::remove(ncclRedOp_t op) noexcept {
  const std::lock_guard lock(mutex_);
  made_.erase(op);
}

std::optional<Scaled> ScaledSums::find(ncclRedOp_t op) const noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = made_.find(op);
  return found != made_.end() ? std::optional(found->second) : std::nullopt;
}

}  // namespace tutti::nccl
