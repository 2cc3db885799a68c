// How a kernel (kernel.cuh) runs in main memory: a rank is one block of one thread. Included by that header where
// the system's compiler reads it.
//
// Thread rule: of the thread of the call.
#pragma once

#include <tutti/plugin/algorithm.h>

#include <array>
#include <cstring>

namespace tutti::plugin {

class HostTeam {
 public:
  explicit HostTeam(Context& call) noexcept : call_(call) {}

  int rank() const noexcept { return call_.rank(); }
  int size() const noexcept { return call_.size(); }
  int root() const noexcept { return call_.root(); }
  static int block() noexcept { return 0; }
  static int blocks() noexcept { return 1; }
  static int thread() noexcept { return 0; }
  static int threads() noexcept { return 1; }
  const std::byte* input(int rank_block) const noexcept {
    return call_.input() == nullptr ? nullptr : call_.input() + rank_block * call_.block_bytes();
  }
  std::byte* output(int rank_block) const noexcept {
    return call_.output() == nullptr ? nullptr : call_.output() + rank_block * call_.block_bytes();
  }
  std::uint64_t block_bytes() const noexcept { return call_.block_bytes(); }
  std::uint64_t element_bytes() const noexcept { return call_.element_bytes(); }
  std::byte* scratch(int of_rank) const noexcept { return call_.scratch(of_rank); }
  std::uint64_t scratch_bytes() const noexcept { return call_.scratch_bytes(); }

  static void sync() noexcept {}
  void signal(int peer) noexcept { static_cast<void>(call_.signal(peer)); }  // a failure ends the next wait
  bool wait(int peer) noexcept { return call_.wait(peer); }
  bool barrier() noexcept { return call_.barrier(); }

  void copy(std::byte* to, const std::byte* from, std::uint64_t bytes) const noexcept { call_.copy(to, from, bytes); }
  void reduce(std::byte* to, const std::byte* const* from, int sources, std::uint64_t bytes) const noexcept {
    std::array<const void*, kMostRanks> list{};
    for (int s = 0; s < sources && s < kMostRanks; ++s) list[static_cast<std::size_t>(s)] = from[s];
    if (sources > kMostRanks) {
      call_.fail("a kernel reduces more ranges than there may be ranks: give reduce() at most size() at a time");
      return;
    }
    call_.reduce(to, list.data(), sources, bytes / call_.element_bytes());
  }
  void divide(std::byte* data, std::uint64_t bytes) const noexcept {
    call_.divide(data, bytes / call_.element_bytes());
  }

  void put_packets(int peer, std::uint64_t at, const std::byte* from, std::uint64_t bytes) noexcept {
    std::uint64_t* const words = packets(peer, at);
    for (std::uint64_t i = 0; i < count_of(bytes); ++i) {
      std::uint32_t payload = 0;
      std::memcpy(&payload, from + 4 * i, bytes - 4 * i < 4 ? bytes - 4 * i : 4);
      // release: what this rank has read before it has read; pairs with the acquire in the library's wait.
      __atomic_store_n(words + i, std::uint64_t{call_.flag()} << 32 | payload, __ATOMIC_RELEASE);
    }
    call_.ring(peer);
  }
  bool take_packets(int peer, std::uint64_t at, std::byte* to, std::uint64_t bytes) noexcept {
    const std::uint64_t* const words = packets(rank(), at);
    if (!call_.await_packets(peer, words, count_of(bytes))) return false;
    unpack(words, to, bytes);
    return true;
  }
  bool reduce_packets(std::byte* to, const std::byte* own, std::uint64_t at, std::uint64_t stride,
                      std::uint64_t bytes) noexcept {
    for (int r = 0; r < size(); ++r) {
      if (r != rank() && !call_.await_packets(r, packets(rank(), at + r * stride), count_of(bytes))) return false;
    }
    // A piece of all ranks at a time: `to` may be `own`.
    constexpr std::uint64_t kPiece = 512;
    alignas(16) std::byte pieces[kMostRanks][kPiece];
    for (std::uint64_t begin = 0; begin < bytes; begin += kPiece) {
      const std::uint64_t piece = bytes - begin < kPiece ? bytes - begin : kPiece;
      const std::byte* sources[kMostRanks];
      for (int r = 0; r < size() && r < kMostRanks; ++r) {
        sources[r] = pieces[r];
        if (r == rank()) {
          std::memcpy(pieces[r], own + begin, piece);
        } else {
          unpack(packets(rank(), at + r * stride) + begin / 4, pieces[r], piece);
        }
      }
      reduce(to + begin, sources, size(), piece);
    }
    return true;
  }

 private:
  static std::uint64_t count_of(std::uint64_t bytes) noexcept { return (bytes + 3) / 4; }
  std::uint64_t* packets(int of_rank, std::uint64_t at) const noexcept {
    return reinterpret_cast<std::uint64_t*>(scratch(of_rank) + at);
  }
  static void unpack(const std::uint64_t* words, std::byte* to, std::uint64_t bytes) noexcept {
    for (std::uint64_t i = 0; i < count_of(bytes); ++i) {
      const auto payload = static_cast<std::uint32_t>(words[i]);
      std::memcpy(to + 4 * i, &payload, bytes - 4 * i < 4 ? bytes - 4 * i : 4);
    }
  }

  Context& call_;
};

// As of Description, and how the kernel is launched.
struct KernelDescription {
  const char* name = nullptr;
  const char* collective = nullptr;
  std::uint64_t scratch_bytes = 0;
  std::uint64_t min_bytes = 0;
  std::uint64_t max_bytes = ~std::uint64_t{0};
  int blocks = 1;
  int threads = 256;
  const char* (*refusal)(const char* dtype, const char* op, std::uint64_t block_bytes, std::int32_t ranks) = nullptr;
};

}  // namespace tutti::plugin

#define TUTTI_NATIVE_KERNEL(function, body, ...)                                                                \
  namespace {                                                                                                   \
  constexpr ::tutti::plugin::KernelDescription function##_description = {__VA_ARGS__};                          \
  static_assert(function##_description.name != nullptr, "an algorithm has a .name");                            \
  static_assert(function##_description.collective != nullptr, "and a .collective");                             \
  static_assert(function##_description.blocks >= 1 && function##_description.blocks <= 64, ".blocks: 1 to 64"); \
  static_assert(function##_description.threads >= 32 && function##_description.threads <= 512 &&                \
                    function##_description.threads % 32 == 0,                                                   \
                ".threads: 32 to 512, whole warps");                                                            \
  bool function##_on_host(::tutti::plugin::Context& call) {                                                     \
    ::tutti::plugin::HostTeam team(call);                                                                       \
    ::tutti::KernelContext<::tutti::plugin::HostTeam> context(team);                                            \
    return body(context);                                                                                       \
  }                                                                                                             \
  const ::tutti::plugin::Registered function##_registered(#function, function##_description,                    \
                                                          ::tutti::plugin::run_guarded<function##_on_host>,     \
                                                          function##_description.blocks,                        \
                                                          function##_description.threads);                      \
  }
