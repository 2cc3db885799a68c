// Plans of the common families of all-reduce for any number of ranks, made here rather than read: what is tried at
// thousands of ranks is not written in a file first.
//
// They are the algorithms of tutti.language.builtins with as few chunks as they need. Those whose ranks are alike come
// as templates.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "plan/plan.h"
#include "plan/template/template.h"

namespace tutti::plan {

struct GeneratorSpec {
  std::int32_t ranks = 2;
  std::int32_t ranks_per_host = 8;  // two-level
  std::int32_t pieces = 0;          // double tree: of each tree's half; one-shot: of the message; 0: the family's usual
};

struct Family {
  std::string_view name;
  std::string_view what;  // in a few words, with the numbers of ranks that it is for
};
const std::vector<Family>& families();

// Throws InvalidArgument if there is no such family, or if it is not for so many ranks.
std::variant<Plan, Template> generate(std::string_view family, const GeneratorSpec& spec);

// The same, written out.
Plan generate_written_out(std::string_view family, const GeneratorSpec& spec);

}  // namespace tutti::plan
