// Which families there are, and for how many ranks.
#include "plan/generators/generators.h"

#include <bit>
#include <string>

#include "plan/generators/algorithms.h"
#include "plan/limits.h"
#include "plan/structure.h"
#include "tutti/error.h"

namespace tutti::plan {
namespace {

constexpr std::int32_t kUsualPieces = 8;    // of a tree; more would shorten its start, but each costs its messages
constexpr std::int32_t kMostAllPairs = 64;  // packets of a rank grow with the ranks
constexpr std::int32_t kMostPieces = 4096;
constexpr std::string_view kLongTree = "double-binary-tree";  // the literature's name

void require(bool condition, std::string_view family, const std::string& what) {
  if (!condition) throw_error(ErrorKind::kInvalidArgument, "generate: " + std::string(family) + " needs " + what);
}

bool power_of_two(std::int32_t number) { return number > 0 && std::has_single_bit(static_cast<unsigned>(number)); }

}  // namespace

const std::vector<Family>& families() {
  static const std::vector<Family> kFamilies{
      {"ring", "2(n-1) steps, least data; any number of ranks"},
      {"recursive-doubling", "log n steps, all data in each; powers of two"},
      {"halving-doubling", "2 log n steps, least data (Rabenseifner); powers of two"},
      {"two-level", "within hosts, then between them; a power of two of hosts"},
      {"double-tree", "or double-binary-tree: two binary trees, in pieces; any number of ranks"},
      {"one-shot", "everything to everybody, in packets; up to 64 ranks"},
      {"two-shot", "every rank adds up its block, in packets; up to 64 ranks"},
  };
  return kFamilies;
}

std::variant<Plan, Template> generate(std::string_view named, const GeneratorSpec& spec) {
  const std::string_view family = named == kLongTree ? "double-tree" : named;
  const std::int32_t ranks = spec.ranks;
  require(ranks >= 2 && ranks <= static_cast<std::int32_t>(kMaxRanks), family,
          "2 to " + std::to_string(kMaxRanks) + " ranks");
  require(spec.pieces >= 0 && spec.pieces <= kMostPieces, family, "0 to " + std::to_string(kMostPieces) + " pieces");
  const bool is_power = power_of_two(ranks);
  const std::string power = "a power of two of ranks, not " + std::to_string(ranks);
  if (family == "ring") return ring(ranks);
  if (family == "recursive-doubling" || family == "halving-doubling") {
    require(is_power, family, power);
    return family == "recursive-doubling" ? recursive_doubling(ranks) : halving_doubling(ranks);
  }
  if (family == "two-level") {
    const std::int32_t host = spec.ranks_per_host;
    require(host >= 1 && ranks % host == 0 && power_of_two(ranks / host), family,
            "a power of two of hosts, each of as many ranks; " + std::to_string(ranks) +
                " ranks do not make hosts of " + std::to_string(host));
    return two_level(ranks, host);
  }
  if (family == "double-tree") return double_tree(ranks, spec.pieces == 0 ? kUsualPieces : spec.pieces);
  if (family == "one-shot" || family == "two-shot") {
    require(ranks <= kMostAllPairs, family,
            "at most " + std::to_string(kMostAllPairs) + " ranks, since every rank holds packets of every other");
    if (family == "two-shot") return two_shot(ranks);
    return one_shot(ranks, spec.pieces == 0 ? 1 : spec.pieces);
  }
  std::string names;
  for (const Family& known : families()) names += (names.empty() ? "" : ", ") + std::string(known.name);
  throw_error(ErrorKind::kInvalidArgument, "generate: \"" + std::string(family) + "\" is none of " + names);
}

Plan generate_written_out(std::string_view family, const GeneratorSpec& spec) {
  auto made = generate(family, spec);
  if (const auto* folded = std::get_if<Template>(&made)) return written_out(*folded);
  check_structure(std::get<Plan>(made));
  return std::get<Plan>(std::move(made));
}

}  // namespace tutti::plan
