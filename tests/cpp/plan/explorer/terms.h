// What a cell holds, as a number: an input, a reduction of inputs in any order, or something that nobody wants.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "plan/plan.h"

namespace tutti::plan::explorer {

using Term = std::int32_t;
inline constexpr Term kNothing = 0;

// Where an input came from.
struct Origin {
  std::int32_t rank = -1;
  std::int64_t place = 0;  // unit of the input buffer
  std::int32_t call = 0;

  auto operator<=>(const Origin&) const = default;
};

class Terms {
 public:
  Term input(const Origin& origin);

  // Brackets and order do not matter within one kind of reduction; a part that is another kind's stays opaque.
  Term reduce(ReduceKind kind, const std::vector<Term>& parts);

  // Null if the term is no input.
  const Origin* origin(Term term) const;

 private:
  using Reduction = std::pair<ReduceKind, std::vector<Term>>;

  Term next_ = kNothing + 1;
  std::map<Origin, Term> inputs_;
  std::map<Term, Origin> origins_;
  std::map<Reduction, Term> reductions_;
  std::map<Term, Reduction> parts_;
};

}  // namespace tutti::plan::explorer
