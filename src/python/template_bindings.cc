// Templates and generated plans for Python: names and texts in, texts and plain dictionaries out.
#include "python/template_bindings.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "interpreter/without_python.h"
#include "plan/generators/generators.h"
#include "plan/reader.h"
#include "plan/writer.h"
#include "python/plan_bindings.h"
#include "python/simulator_bindings.h"
#include "tutti/error.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace tutti {
namespace {

std::string generate_plan(const std::string& family, std::int32_t ranks, std::int32_t ranks_per_host,
                          std::int32_t pieces, int indent) {
  const WithoutPython released;
  const auto made = plan::generate(family, {ranks, ranks_per_host, pieces});
  if (const auto* folded = std::get_if<plan::Template>(&made)) return plan::write_template(*folded, indent);
  return plan::write_plan(std::get<plan::Plan>(made), indent);
}

nb::dict check_generated(const std::string& family, std::int32_t ranks, std::int32_t ranks_per_host,
                         std::int32_t pieces, bool strict) {
  const plan::GeneratorSpec spec{ranks, ranks_per_host, pieces};
  return checked_plan([&] { return plan::generate_written_out(family, spec); }, strict);
}

nb::dict simulate_generated(const std::string& family, std::int32_t ranks, const std::string& topology_text,
                            std::int64_t block_bytes, std::int32_t ranks_per_host, std::int32_t pieces,
                            std::optional<double> budget_s, bool timeline) {
  const plan::GeneratorSpec spec{ranks, ranks_per_host, pieces};
  return simulated_plan([&] { return plan::generate(family, spec); }, topology_text, block_bytes, budget_s, timeline);
}

std::string fold_plan(const std::string& text, const std::optional<std::vector<std::int32_t>>& dims,
                      std::int32_t input_blocks, std::int32_t output_blocks, int indent) {
  const WithoutPython released;
  if (!dims && (input_blocks != 1 || output_blocks != 1)) {
    throw_error(ErrorKind::kInvalidArgument,
                "into how many blocks a buffer is cut says nothing without a numbering of ranks: name it too (dims)");
  }
  const plan::Plan plan = plan::read_plan(text);
  const plan::Template folded =
      dims ? plan::folded(plan, plan::Symmetry(*dims, {input_blocks, output_blocks})) : plan::folded(plan);
  return plan::write_template(folded, indent);
}

std::string write_out_plan(const std::string& text, int indent) {
  const WithoutPython released;
  return plan::write_plan(plan::read_plan(text), indent);
}

std::size_t ranks_of_plan(const std::string& text) {
  const WithoutPython released;
  const auto read = plan::read_plan_or_template(text);
  const auto* folded = std::get_if<plan::Template>(&read);
  return folded != nullptr ? static_cast<std::size_t>(folded->symmetry.ranks())
                           : std::get<plan::Plan>(read).ranks.size();
}

}  // namespace

void bind_templates(nb::module_& m) {
  m.def(
      "plan_families",
      [] {
        nb::dict out;
        for (const plan::Family& family : plan::families()) {
          out[nb::str(family.name.data(), family.name.size())] = nb::str(family.what.data(), family.what.size());
        }
        return out;
      },
      "What generate_plan can make: names and what they are for.");
  m.def("generate_plan", &generate_plan, "family"_a, "ranks"_a, "ranks_per_host"_a = 8, "pieces"_a = 0, "indent"_a = -1,
        "A plan of a family, as a template where its ranks are alike.");
  m.def("check_generated", &check_generated, "family"_a, "ranks"_a, "ranks_per_host"_a = 8, "pieces"_a = 0,
        "strict"_a = false, "check_plan of a generated plan, without its text.");
  m.def("simulate_generated", &simulate_generated, "family"_a, "ranks"_a, "topology"_a, "block_bytes"_a,
        "ranks_per_host"_a = 8, "pieces"_a = 0, "budget_s"_a = nb::none(), "timeline"_a = false,
        "simulate_plan of a generated plan, without its text.");
  m.def("fold_plan", &fold_plan, "text"_a, "dims"_a = nb::none(), "input_blocks"_a = 1, "output_blocks"_a = 1,
        "indent"_a = -1, "The template of a plan. Raises ValueError if its ranks are not alike.");
  m.def("write_out_plan", &write_out_plan, "text"_a, "indent"_a = -1, "A template's plan with all its ranks.");
  m.def("ranks_of_plan", &ranks_of_plan, "text"_a, "How many ranks a plan or template is for.");
}

}  // namespace tutti
