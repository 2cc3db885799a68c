// One collective with its data and what must come out, for the host's stand-in of the device and for GPUs alike.
// Payloads are unique by seed, rank and index; expected results are computed by the plain reference of the CPU's
// kernels.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#include "device/reference_reduce.h"
#include "tutti/call.h"

namespace tutti::cuda::test {

struct CaseShape {
  Collective collective = Collective::kAllReduce;
  DataType dtype = DataType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::size_t count = 1;  // elements of one block
  int root = 0;
  bool in_place = false;
  std::size_t shift = 0;         // elements by which both buffers are off their alignment
  std::size_t output_shift = 0;  // by which the output is off further
  double factor = 1.0;
  bool device_factor = false;  // read from memory by the kernels; `factor` is what lies there
};

inline std::string describe(const CaseShape& s, int size) {
  return std::string(to_string(s.collective)) + " " + std::string(to_string(s.dtype)) + "[" + std::to_string(s.count) +
         "] " + std::string(to_string(s.op)) + " ranks " + std::to_string(size) + " root " + std::to_string(s.root) +
         (s.in_place ? " in place" : "") + " shift " + std::to_string(s.shift) +
         (s.output_shift > 0 ? " and " + std::to_string(s.output_shift) : "") +
         (s.device_factor ? " factor in memory" : "");
}

inline std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ x >> 27) * 0x94d049bb133111ebULL;
  return x ^ x >> 31;
}

// Small values that every type holds, and that keep sums and products finite; for bytes that are only moved, any.
inline void fill(std::vector<std::byte>& bytes, const CaseShape& s, std::uint64_t seed, int rank) {
  const bool reduce = s.collective == Collective::kAllReduce || s.collective == Collective::kReduce ||
                      s.collective == Collective::kReduceScatter;
  for (std::size_t i = 0; i * 8 < bytes.size(); ++i) {
    const std::uint64_t x = mixed(seed * 0x9e3779b97f4a7c15ULL + static_cast<std::uint64_t>(rank) * 0x51ed27 + i);
    std::memcpy(&bytes[i * 8], &x, std::min<std::size_t>(8, bytes.size() - i * 8));
  }
  if (!reduce) return;
  reference::with_traits(s.dtype, [&]<typename Traits>(Traits) {
    using S = typename Traits::Stored;
    using V = typename Traits::Value;
    for (std::size_t i = 0; i < bytes.size() / sizeof(S); ++i) {
      const std::uint64_t x = mixed(seed + static_cast<std::uint64_t>(rank) * 1000003 + i * 17);
      if constexpr (std::is_floating_point_v<V>) {
        reference::store<S>(bytes.data(), i, Traits::out(static_cast<V>(static_cast<int>(x % 15) - 7) / V{4}));
      } else {
        reference::store<S>(bytes.data(), i, static_cast<S>(x));
      }
    }
  });
}

// The shape's factor as the kernels read it from memory: an element of its type, of a complex one's part. Empty unless
// the type has fractions.
inline std::vector<std::byte> stored_factor(const CaseShape& s) {
  std::vector<std::byte> bytes;
  reference::with_traits(s.dtype, [&]<typename Traits>(Traits) {
    using V = typename Traits::Value;
    if constexpr (std::is_floating_point_v<V>) {
      bytes.resize(sizeof(typename Traits::Stored));
      reference::store<typename Traits::Stored>(bytes.data(), 0, Traits::out(static_cast<V>(s.factor)));
    }
  });
  return bytes;
}

class CollectiveCase {
 public:
  CollectiveCase(const CaseShape& shape, int size, std::uint64_t seed) : shape_(shape), size_(size) {
    block_ = shape.count * size_of(shape.dtype);
    for (int r = 0; r < size; ++r) {
      inputs_.emplace_back(block_ * (many_in() ? static_cast<std::size_t>(size) : 1));
      fill(inputs_.back(), shape, seed, r);
    }
  }
  const CaseShape& shape() const { return shape_; }
  std::size_t input_bytes() const { return inputs_[0].size(); }
  std::size_t output_bytes() const { return block_ * (many_out() ? static_cast<std::size_t>(size_) : 1); }
  const std::vector<std::byte>& input(int rank) const { return inputs_[static_cast<std::size_t>(rank)]; }

  // Where the input of an in-place call lies in the output, or the output in the input.
  std::size_t in_place_offset(int rank) const {
    const bool block = shape_.collective == Collective::kAllGather || shape_.collective == Collective::kGather ||
                       shape_.collective == Collective::kReduceScatter || shape_.collective == Collective::kScatter;
    return block ? static_cast<std::size_t>(rank) * block_ : 0;
  }
  bool many_in() const {
    return shape_.collective == Collective::kReduceScatter || shape_.collective == Collective::kScatter ||
           shape_.collective == Collective::kAllToAll;
  }
  bool many_out() const {
    return shape_.collective == Collective::kAllGather || shape_.collective == Collective::kGather ||
           shape_.collective == Collective::kAllToAll;
  }

  Call call(std::byte* input, std::byte* output) const {
    Call call;
    call.collective = shape_.collective;
    call.dtype = shape_.dtype;
    call.op = shape_.op;
    call.root = shape_.root;
    call.count = shape_.count;
    call.factor = shape_.factor;
    call.input = Blocks::single(input, block_);
    call.output = Blocks::single(output, block_);
    return call;
  }

  // Empty: this rank's output is not defined.
  std::vector<std::byte> expected(int rank) const {
    const Collective c = shape_.collective;
    const bool rooted = c == Collective::kReduce || c == Collective::kGather;
    if (c == Collective::kBarrier || (rooted && rank != shape_.root)) return {};
    std::vector<std::byte> out(output_bytes());
    const auto at = [&](int src, int block) {
      return inputs_[static_cast<std::size_t>(src)].data() + (many_in() ? static_cast<std::size_t>(block) * block_ : 0);
    };
    if (c == Collective::kAllReduce || c == Collective::kReduce || c == Collective::kReduceScatter) {
      std::vector<std::vector<std::byte>> parts;
      std::vector<const void*> srcs;
      for (int r = 0; r < size_; ++r) {
        parts.emplace_back(at(r, rank), at(r, rank) + block_);
        if (shape_.op == ReduceOp::kPremulSum) {
          reference::scale(parts.back().data(), at(r, rank), shape_.count, shape_.dtype, shape_.factor);
        }
      }
      for (const auto& part : parts) srcs.push_back(part.data());
      void* dst = out.data();
      reference::reduce(&dst, 1, srcs.data(), size_, shape_.count, shape_.dtype, shape_.op, size_);
      return out;
    }
    const bool from_root = c == Collective::kBroadcast || c == Collective::kScatter;
    for (int r = 0; r < (many_out() ? size_ : 1); ++r) {
      if (block_ > 0)
        std::memcpy(out.data() + static_cast<std::size_t>(r) * block_, at(from_root ? shape_.root : r, rank), block_);
    }
    return out;
  }

 private:
  CaseShape shape_;
  int size_;
  std::size_t block_ = 0;
  std::vector<std::vector<std::byte>> inputs_;
};

}  // namespace tutti::cuda::test
