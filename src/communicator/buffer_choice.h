// Which of the buffers that a group has registered an allocation takes: the same one on all ranks.
//
// Registered memory is used without copies only where all ranks pass the same buffer. When a tensor is freed is up to
// each rank's program. So every rank says which of its buffers of that size are free, and all of them take the first
// one that is free everywhere.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti {

// What one rank says; exchanged as bytes.
struct BufferOffer {
  static constexpr std::size_t kMost = 896;  // buffers of one size

  std::uint64_t bytes = 0;                       // that it asks for
  std::uint64_t shares = 0;                      // 0: it can take ordinary memory only
  std::array<std::uint64_t, kMost / 64> free{};  // bit i: the i-th buffer of this size, in order of making

  void set_free(std::size_t i) noexcept { free[i / 64] |= std::uint64_t{1} << (i % 64); }
};

enum class BufferSource {
  kOrdinary,  // the ranks ask for different sizes, or one of them cannot share
  kNew,       // no buffer is free on all ranks
  kReused,
};
struct BufferChoice {
  BufferSource source = BufferSource::kOrdinary;
  std::size_t index = 0;  // of kReused

  bool operator==(const BufferChoice&) const = default;
};

// Of all ranks' offers; `made`: buffers of this size so far. It depends on nothing else, so all ranks choose alike.
BufferChoice choose_buffer(const std::vector<BufferOffer>& offers, std::size_t made) noexcept;

}  // namespace tutti
