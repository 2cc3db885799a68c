// Plug-ins of the tests (tests/python/support/algorithms_rank.py): right ones, and ones that fail in every way that
// they can.
#include <tutti/plugin/algorithm.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string_view>
#include <vector>

namespace {

using tutti::plugin::Context;

bool gather(Context& c) {
  c.copy(c.scratch(c.rank()), c.input(), c.block_bytes());
  if (!c.barrier()) return false;
  for (int r = 0; r < c.size(); ++r) c.copy(c.output() + r * c.block_bytes(), c.scratch(r), c.block_bytes());
  return true;
}

// Rank 0 adds up what all have, piece by piece, and all copy it from its scratch.
bool reduce(Context& c) {
  const std::size_t half = c.scratch_bytes() / 2;
  for (std::size_t begin = 0; begin < c.block_bytes(); begin += half) {
    const std::size_t piece = std::min(half, c.block_bytes() - begin);
    c.copy(c.scratch(c.rank()), c.input() + begin, piece);
    if (!c.barrier()) return false;
    if (c.rank() == 0) {
      std::vector<const void*> all;
      for (int r = 0; r < c.size(); ++r) all.push_back(c.scratch(r));
      std::byte* sum = c.scratch(0) + half;
      c.reduce(sum, all.data(), c.size(), piece / c.element_bytes());
      c.divide(sum, piece / c.element_bytes());
    }
    if (!c.barrier()) return false;
    c.copy(c.output() + begin, c.scratch(0) + half, piece);
    if (!c.barrier()) return false;
  }
  return true;
}

const char* only_floats(const char* dtype, const char* /*op*/, std::uint64_t /*bytes*/, std::int32_t /*ranks*/) {
  return std::string_view(dtype) == "f32" ? nullptr : "takes only floats";
}

// Every rank takes the mapped tensor of the rank `by` after it.
bool rotate(Context& c) {
  const int from = static_cast<int>(c.rank() + c.extra("by", 1)) % c.size();
  if (c.mapped_input(from) == nullptr) return c.fail("the tensors are not mapped");
  if (!c.barrier()) return false;
  c.copy(c.output(), c.mapped_input(from), c.block_bytes());
  return c.barrier();
}

bool chatty(Context& c) {
  for (int r = 0; r < c.size(); ++r) {
    for (int k = 0; k < 3; ++k) c.signal(r);
  }
  c.copy(c.output(), c.input(), c.block_bytes());
  return true;
}

bool throwing(Context& c) {
  if (c.rank() == 0) throw std::runtime_error("no luck today");
  return c.barrier();
}

// The other ranks still read when rank 0 has done its part.
bool late(Context& c) {
  c.copy(c.scratch(c.rank()), c.input(), c.block_bytes());
  if (!c.barrier()) return false;
  if (c.rank() != 0) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
    while (std::chrono::steady_clock::now() < end) continue;
  }
  c.copy(c.output(), c.scratch(0), c.block_bytes());
  return true;
}

bool stuck(Context& c) { return c.wait((c.rank() + 1) % c.size()); }

}  // namespace

TUTTI_NATIVE_ALGORITHM(create_gather, .name = "plain_all_gather", .collective = "allgather", .scratch_bytes = 1 << 20,
                       .max_bytes = 1 << 20, .run = gather)
TUTTI_NATIVE_ALGORITHM(create_reduce, .name = "root_all_reduce", .collective = "all_reduce", .scratch_bytes = 512,
                       .run = reduce, .refusal = only_floats)
TUTTI_NATIVE_ALGORITHM(create_rotate, .name = "rotate", .collective = "allreduce", .run = rotate)
TUTTI_NATIVE_ALGORITHM(create_chatty, .name = "chatty", .collective = "allreduce", .run = chatty)
TUTTI_NATIVE_ALGORITHM(create_throwing, .name = "throwing", .collective = "allreduce", .run = throwing)
TUTTI_NATIVE_ALGORITHM(create_late, .name = "late", .collective = "allreduce", .scratch_bytes = 1 << 16, .run = late)
TUTTI_NATIVE_ALGORITHM(create_waiting, .name = "stuck_all_reduce", .collective = "allreduce", .run = stuck)
