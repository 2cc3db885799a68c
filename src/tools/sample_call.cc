#include "tools/sample_call.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "base/collective_traits.h"
#include "device/cpu/arena.h"
#include "tutti/error.h"

namespace tutti {
namespace {

bool in_place(Collective c) noexcept { return c == Collective::kAllReduce || c == Collective::kBroadcast; }

std::size_t blocks_in(const SampleShape& s) {
  return traits_of(s.collective).input_blocks ? static_cast<std::size_t>(s.ranks) : 1;
}
std::size_t blocks_out(const SampleShape& s) {
  return traits_of(s.collective).output_blocks ? static_cast<std::size_t>(s.ranks) : 1;
}

// Data repeats after this many elements. A prime, so that no two chunks of a plan are alike.
constexpr std::size_t kPeriod = 1021;

// Up to 64 ranks' sum stays below 256, to which bf16 counts exactly.
int value(int rank, std::size_t block, std::size_t i) {
  const std::size_t place = (i + block * 97 + static_cast<std::size_t>(rank) * 331) % kPeriod;
  return static_cast<int>(place * place / 5 % 4);
}

// The bits of a small whole number.
std::uint64_t encode(DataType dtype, int number) {
  switch (dtype) {
    case DataType::kFloat32:
      return std::bit_cast<std::uint32_t>(static_cast<float>(number));
    case DataType::kFloat64:
      return std::bit_cast<std::uint64_t>(static_cast<double>(number));
    case DataType::kBfloat16:
      return std::bit_cast<std::uint32_t>(static_cast<float>(number)) >> 16;
    case DataType::kFloat16: {
      if (number == 0) return 0;
      const int exponent = std::bit_width(static_cast<unsigned>(number)) - 1;
      const unsigned fraction = (static_cast<unsigned>(number) << (10 - exponent)) & 0x3ff;
      return static_cast<std::uint64_t>(exponent + 15) << 10 | fraction;
    }
    case DataType::kInt32:
    case DataType::kInt64:
      return static_cast<std::uint64_t>(number);
    default:
      throw_error(ErrorKind::kUnsupported,
                  "there are samples of f16, bf16, f32, f64, i32 and i64, not of " + std::string(to_string(dtype)));
  }
}

void put(std::byte* to, std::size_t i, DataType dtype, int number) {
  const std::uint64_t bits = encode(dtype, number);  // little-endian, as all that Tutti runs on
  std::memcpy(to + i * size_of(dtype), &bits, size_of(dtype));
}

bool holds(const std::byte* from, std::size_t i, DataType dtype, int number) {
  const std::uint64_t bits = encode(dtype, number);
  return std::memcmp(from + i * size_of(dtype), &bits, size_of(dtype)) == 0;
}

// Element i of block `block` of the output of `rank`.
int expected(const SampleShape& s, int rank, std::size_t block, std::size_t i) {
  const auto own = static_cast<std::size_t>(rank);
  switch (s.collective) {
    case Collective::kAllGather:
    case Collective::kGather:
      return value(static_cast<int>(block), 0, i);
    case Collective::kScatter:
      return value(0, own, i);
    case Collective::kAllToAll:
      return value(static_cast<int>(block), own, i);
    case Collective::kBroadcast:
      return value(0, 0, i);
    default: {
      int sum = 0;
      for (int r = 0; r < s.ranks; ++r) sum += value(r, s.collective == Collective::kReduceScatter ? own : 0, i);
      return sum;
    }
  }
}

// Elements i of a block, of which `number(i)` tells the first kPeriod.
template <class Number>
void fill_block(std::byte* block, std::size_t count, DataType dtype, const Number& number) {
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i) put(block, i, dtype, number(i));
  const std::size_t bytes = count * size_of(dtype);
  for (std::size_t filled = std::min(count, kPeriod) * size_of(dtype); filled < bytes;) {
    const std::size_t more = std::min(filled, bytes - filled);
    std::memcpy(block + filled, block, more);
    filled += more;
  }
}

template <class Number>
bool block_holds(const std::byte* block, std::size_t count, DataType dtype, const Number& number) {
  for (std::size_t i = 0; i < std::min(count, kPeriod); ++i) {
    if (!holds(block, i, dtype, number(i))) return false;
  }
  if (count <= kPeriod) return true;
  const std::size_t period = kPeriod * size_of(dtype);
  return std::memcmp(block, block + period, count * size_of(dtype) - period) == 0;
}

}  // namespace

SampleCall::Memory::Memory(std::size_t bytes, bool mapped) : bytes_(std::max<std::size_t>(bytes, 1)) {
  if (mapped) {
    arena_ = process_arena();
    if (arena_ != nullptr) data_ = static_cast<std::byte*>(arena_->allocate(bytes_));
    if (data_ == nullptr) throw_error(ErrorKind::kExhausted, "the arena of mapped tensors has no room for this size");
    return;
  }
  void* memory = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw_system_error(ErrorKind::kExhausted, "mmap", errno);
  data_ = static_cast<std::byte*>(memory);
}

SampleCall::Memory::~Memory() {
  if (arena_ != nullptr) {
    arena_->deallocate(data_);
  } else {
    ::munmap(data_, bytes_);
  }
}

SampleCall::SampleCall(const SampleShape& shape)
    : shape_(shape),
      input_(shape.bytes * blocks_in(shape), shape.mapped),
      output_(in_place(shape.collective) ? 1 : shape.bytes * blocks_out(shape), shape.mapped) {
  call_.collective = shape.collective;
  if (shape.collective == Collective::kBarrier) return;
  call_.dtype = shape.dtype;
  call_.op = shape.op;
  call_.root = has_root(shape.collective) ? 0 : -1;
  call_.count = shape.bytes / size_of(shape.dtype);
  const std::size_t bytes = call_.count * size_of(shape.dtype);
  call_.input = Blocks::single(input_.data(), bytes);
  call_.output = Blocks::single(in_place(shape.collective) ? input_.data() : output_.data(), bytes);
}

std::byte* SampleCall::block(const Memory& memory, std::size_t index) const noexcept {
  return memory.data() + index * call_.count * size_of(shape_.dtype);
}

void SampleCall::fill(int rank) {
  if (shape_.collective == Collective::kBarrier) return;
  for (std::size_t b = 0; b < blocks_in(shape_); ++b) {
    fill_block(block(input_, b), call_.count, shape_.dtype, [&](std::size_t i) { return value(rank, b, i); });
  }
  if (in_place(shape_.collective)) return;
  constexpr int kNothing = 255;
  fill_block(output_.data(), call_.count * blocks_out(shape_), shape_.dtype, [](std::size_t) { return kNothing; });
}

bool SampleCall::right(int rank) const {
  const Collective c = shape_.collective;
  if (c == Collective::kBarrier) return true;
  if (rank != 0 && traits_of(c).root_writes) return true;
  const Memory& output = in_place(c) ? input_ : output_;
  for (std::size_t b = 0; b < blocks_out(shape_); ++b) {
    const auto number = [&](std::size_t i) { return expected(shape_, rank, b, i); };
    if (!block_holds(block(output, b), call_.count, shape_.dtype, number)) return false;
  }
  return true;
}

void SampleCall::clear() {
  std::memset(input_.data(), 0, inputs().size());
  if (!outputs().empty()) std::memset(output_.data(), 0, outputs().size());
}

std::span<std::byte> SampleCall::inputs() const noexcept {
  return {input_.data(), call_.count * size_of(shape_.dtype) * blocks_in(shape_)};
}

std::span<std::byte> SampleCall::outputs() const noexcept {
  if (in_place(shape_.collective)) return {};
  return {output_.data(), call_.count * size_of(shape_.dtype) * blocks_out(shape_)};
}

}  // namespace tutti
