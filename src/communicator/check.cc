// Refuses groups and calls that cannot work, before anything is sent.
#include <functional>
#include <string>

#include "base/collective_traits.h"
#include "base/registry.h"
#include "communicator/call_check.h"
#include "communicator/call_records.h"
#include "communicator/communicator_impl.h"
#include "device/cpu/kernels.h"

namespace tutti {
namespace {

[[noreturn]] void refuse(const Call& call, const std::string& why) {
  throw_error(ErrorKind::kInvalidArgument, std::string(to_string(call.collective)) + ": " + why);
}

// Equal blocks one behind the other.
bool is_piece(const Blocks& blocks) noexcept { return blocks.pointers == nullptr && blocks.sizes == nullptr; }

// The rest of check_blocks(), which most calls pass at one look.
[[gnu::noinline]] void check_each_block(const Call& call, const Blocks& blocks, int count, const char* what,
                                        std::size_t part_of_element) {
  if (blocks.pointers != nullptr) {
    for (int r = 0; r < count; ++r) {
      if (blocks.pointers[r] == nullptr && blocks.size(r) != 0)
        refuse(call, std::string(what) + " of rank " + std::to_string(r) + " is null");
    }
  } else if (blocks.base == nullptr && blocks.bytes != 0) {
    refuse(call, std::string(what) + " is null");
  }
  const int looked = blocks.sizes != nullptr ? count : 1;
  for (int r = 0; r < looked; ++r) {
    if ((blocks.size(r) & part_of_element) != 0) {
      refuse(call, std::string(what) + " has " + std::to_string(blocks.size(r)) + " bytes, not a whole number of " +
                       std::string(to_string(call.dtype)) + " elements");
    }
  }
}

void check_blocks(const Call& call, const Blocks& blocks, int count, const char* what) {
  const std::size_t part_of_element = size_of(call.dtype) - 1;  // sizes are powers of two: no division in each call
  const bool right = is_piece(blocks) && blocks.base != nullptr && (blocks.bytes & part_of_element) == 0;
  if (!right) check_each_block(call, blocks, count, what, part_of_element);
}

void check_equal(const Call& call, std::size_t a, std::size_t b, const char* what) {
  if (a != b) refuse(call, std::string(what) + ": " + std::to_string(a) + " bytes against " + std::to_string(b));
}

void check_list_sizes(const Call& call, const Blocks& list, int count, std::size_t expected, const char* what) {
  if (call.uneven) return;
  const int looked = list.sizes != nullptr ? count : 1;
  for (int r = 0; r < looked; ++r) check_equal(call, list.size(r), expected, what);
}

struct Extent {
  const std::byte* first = nullptr;
  const std::byte* end = nullptr;  // nullptr: nothing
};

bool apart(const Extent& a, const Extent& b) noexcept {
  const std::less<> before;
  return a.end == nullptr || b.end == nullptr || !before(a.first, b.end) || !before(b.first, a.end);
}

Extent extent_of(const Blocks& blocks, int r) noexcept {
  if (blocks.size(r) == 0) return {};
  return {blocks.data(r), blocks.data(r) + blocks.size(r)};
}

Extent extent_of_piece(const Blocks& blocks, int count) noexcept {
  const std::size_t bytes = blocks.bytes * static_cast<std::size_t>(count);
  return {blocks.base, bytes != 0 ? blocks.base + bytes : nullptr};
}

// From the first byte of all blocks to the last: one piece's own, else with what lies between them.
Extent extent_of_all(const Blocks& blocks, int count) noexcept {
  if (is_piece(blocks)) return extent_of_piece(blocks, count);
  Extent all = extent_of(blocks, 0);
  for (int r = 1; r < count; ++r) {
    const Extent one = extent_of(blocks, r);
    if (one.end == nullptr) continue;
    if (all.end == nullptr || std::less<>()(one.first, all.first)) all.first = one.first;
    if (all.end == nullptr || std::less<>()(all.end, one.end)) all.end = one.end;
  }
  return all;
}

// What is read lies apart from what is written, which happens in any order; or it is this rank's own block on both
// sides, at one place (tutti/call.h). An all-to-all has no such block.
[[gnu::noinline]] void check_each_apart(const Call& call, int in_blocks, int out_blocks, int rank, int size) {
  if (call.may_overlap || apart(extent_of_all(call.input, in_blocks), extent_of_all(call.output, out_blocks))) return;
  const bool exchanges = call.collective == Collective::kAllToAll && size > 1;
  for (int i = 0; i < in_blocks; ++i) {
    const Extent in = extent_of(call.input, i);
    for (int o = 0; o < out_blocks; ++o) {
      if (apart(in, extent_of(call.output, o))) continue;
      const bool own = (in_blocks == 1 || i == rank) && (out_blocks == 1 || o == rank);
      if (!exchanges && own && call.input.data(i) == call.output.data(o)) continue;
      refuse(call, "the input overlaps the output" +
                       std::string(exchanges ? "" : ", and not as one and the same block of this rank") +
                       ": pass memory apart from it, such as a copy of the input");
    }
  }
}

void check_apart(const Call& call, int in_blocks, int out_blocks, int rank, int size) {
  const bool right = is_piece(call.input) && is_piece(call.output) &&
                     apart(extent_of_piece(call.input, in_blocks), extent_of_piece(call.output, out_blocks));
  if (!right) check_each_apart(call, in_blocks, out_blocks, rank, size);
}

void check_reduction(const Call& call) {
  if (cpu::supports(call.dtype, call.op)) return;
  const std::string op(to_string(call.op));
  const std::string dtype(to_string(call.dtype));
  if (call.op == ReduceOp::kPremulSum) {
    refuse(call, op + " of " + dtype + " would lose its fraction: use sum, or convert to a floating type");
  }
  refuse(call, op + " makes no sense for " + dtype);
}

}  // namespace

void CommunicatorImpl::check(const Call& call) const {
  throw_if_forked();
  if (call.choice != nullptr) check_choice(call);
  if (call.device_factor != nullptr) refuse(call, "a factor in device memory is read by GPUs only: give its value");
  if (call.may_overlap) refuse(call, "only calls on GPUs may overlap: leave Call::may_overlap unset");
  check_call(call, rank_, size_);
}

void check_group(int rank, int size) {
  if (size < 1 || rank < 0 || rank >= size) {
    throw_error(ErrorKind::kInvalidArgument, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                                 ": a rank lies between 0 and the world size less one");
  }
  // What is kept of each rank would fill the memory long before such a group could form.
  constexpr int kMostRanks = 65'536;
  if (size > kMostRanks) {
    throw_error(ErrorKind::kInvalidArgument,
                "a group of " + std::to_string(size) + " ranks: there are at most " + std::to_string(kMostRanks));
  }
  if (forked_child()) {
    throw_error(ErrorKind::kUnsupported,
                "Tutti was used before fork() and is disabled in this child: start it by spawn, or fork earlier");
  }
}

void check_group_timeout(const std::string& group, std::chrono::milliseconds timeout) {
  if (timeout.count() > 0) return;
  throw_error(ErrorKind::kInvalidArgument, "group '" + group + "': the timeout of a group must be more than 0, not " +
                                               std::to_string(timeout.count()) + " ms");
}

void check_call_timeout(std::string_view what, std::chrono::milliseconds timeout) {
  if (timeout.count() >= 0) return;
  throw_error(ErrorKind::kInvalidArgument, std::string(what) + ": the timeout must not be negative, as " +
                                               std::to_string(timeout.count()) + " ms is");
}

void check_call(const Call& call, int rank, int size) {
  const Collective c = call.collective;
  const bool at_root = call.root == rank;
  if (has_root(c) && (call.root < 0 || call.root >= size)) {
    refuse(call, "root " + std::to_string(call.root) + " is not a rank of this group of " + std::to_string(size));
  }
  if (reduces(c)) check_reduction(call);
  // What the ranks compare is the count, what they read and write the blocks. Parts of elements are refused below.
  if (const std::size_t bytes = block_bytes(call, rank), element = size_of(call.dtype);
      !call.uneven && bytes != call.count * element && bytes % element == 0 && c != Collective::kBarrier) {
    refuse(call, "the call is of " + std::to_string(call.count) + " elements of " + std::string(to_string(call.dtype)) +
                     ", and this rank's block has " + std::to_string(bytes) + " bytes");
  }
  // One tensor on both sides, as calls in place and most broadcasts have it: it is looked at once, and lies apart.
  const bool one_tensor = is_piece(call.input) && is_piece(call.output) && call.input.base == call.output.base &&
                          call.input.bytes == call.output.bytes;
  switch (c) {
    case Collective::kBarrier:
      return;
    case Collective::kAllReduce:
    case Collective::kReduce:
    case Collective::kBroadcast:
      check_blocks(call, call.input, 1, c == Collective::kBroadcast ? "the buffer" : "the input");
      if (!one_tensor && (c != Collective::kReduce || at_root)) {
        check_blocks(call, call.output, 1, c == Collective::kBroadcast ? "the buffer" : "the output");
        check_equal(call, call.input.size(0), call.output.size(0), "input and output differ in size");
        check_apart(call, 1, 1, rank, size);
      }
      return;
    case Collective::kAllGather:
    case Collective::kGather:
      check_blocks(call, call.input, 1, "the input");
      if (c == Collective::kAllGather || at_root) {
        check_blocks(call, call.output, size, "the output");
        check_equal(call, call.output.size(rank), call.input.size(0),
                    "the output's own block differs from the input in size");
        check_list_sizes(call, call.output, size, call.input.size(0), "an output block differs from the input in size");
        check_apart(call, 1, size, rank, size);
      }
      return;
    case Collective::kReduceScatter:
    case Collective::kScatter:
      check_blocks(call, call.output, 1, "the output");
      if (c == Collective::kReduceScatter || at_root) {
        check_blocks(call, call.input, size, "the input");
        check_equal(call, call.input.size(rank), call.output.size(0),
                    "the input's own block differs from the output in size");
        check_list_sizes(call, call.input, size, call.output.size(0), "an input block differs from the output in size");
        check_apart(call, size, 1, rank, size);
      }
      return;
    case Collective::kAllToAll:
      check_blocks(call, call.input, size, "the input");
      check_blocks(call, call.output, size, "the output");
      check_equal(call, call.input.size(rank), call.output.size(rank),
                  "the own blocks of input and output differ in size");
      check_list_sizes(call, call.input, size, call.input.size(0), "input blocks differ in size");
      check_list_sizes(call, call.output, size, call.input.size(0), "an output block differs from the input's in size");
      check_apart(call, size, size, rank, size);
      return;
  }
}

void check_message(const DeviceMessage& message, int rank, int size) {
  if (message.peer < 0 || message.peer >= size || message.peer == rank) {
    throw_error(ErrorKind::kInvalidArgument, std::string(message.send ? "send to" : "receive from") + " rank " +
                                                 std::to_string(message.peer) +
                                                 ": must be another rank of this group of " + std::to_string(size));
  }
  if (message.data == nullptr && message.bytes > 0) {
    throw_error(ErrorKind::kInvalidArgument, "the message's memory is null");
  }
}

}  // namespace tutti
