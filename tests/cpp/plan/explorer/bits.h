// A growing set of small numbers.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace tutti::plan::explorer {

class Bits {
 public:
  bool test(std::size_t i) const { return i / 64 < words_.size() && ((words_[i / 64] >> (i % 64)) & 1) != 0; }

  void set(std::size_t i) {
    if (i / 64 >= words_.size()) words_.resize(i / 64 + 1, 0);
    words_[i / 64] |= std::uint64_t{1} << (i % 64);
  }

  void unite(const Bits& other) {
    if (words_.size() < other.words_.size()) words_.resize(other.words_.size(), 0);
    for (std::size_t w = 0; w < other.words_.size(); ++w) words_[w] |= other.words_[w];
  }

  void intersect(const Bits& other) {
    words_.resize(std::min(words_.size(), other.words_.size()));
    for (std::size_t w = 0; w < words_.size(); ++w) words_[w] &= other.words_[w];
  }

  // Calls visit(i) for every number that is here and not in `other`.
  template <typename Visit>
  void for_each_not_in(const Bits& other, const Visit& visit) const {
    for (std::size_t w = 0; w < words_.size(); ++w) {
      std::uint64_t word = words_[w] & ~(w < other.words_.size() ? other.words_[w] : 0);
      for (; word != 0; word &= word - 1) visit(w * 64 + static_cast<std::size_t>(std::countr_zero(word)));
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace tutti::plan::explorer
