// The header of a plan from JSON, and the ranks one by one.
#include "plan/reader.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "plan/json_document.h"
#include "plan/limits.h"
#include "plan/operations.h"
#include "plan/rank_reader.h"
#include "plan/structure.h"

namespace tutti::plan {
namespace {

void read_names(const Cursor& from, Plan& plan) {
  plan.name = from.at("name").text(kMaxNameBytes);
  plan.collective_name = from.at("collective").text(kMaxNameBytes);
  plan.collective = collective_of(plan.collective_name).value_or(PlanCollective::kCustom);
  const Cursor protocol = from.at("protocol");
  const auto found = protocol_of(protocol.text(kMaxNameBytes));
  if (!found) protocol.fail("\"Simple\" or \"LL\" is expected");
  plan.protocol = *found;
  if (from.has("version")) {
    const std::int64_t version = from.at("version").integer(1, INT32_MAX);
    if (version > kPlanVersion) {
      from.at("version").fail("made for version " + std::to_string(version) + "; this Tutti reads up to " +
                              std::to_string(kPlanVersion));
    }
    plan.version = static_cast<int>(version);
  }
  if (from.has("source")) plan.source = from.at("source").text(kMaxNameBytes);
}

void read_settings(const Cursor& from, Plan& plan) {
  plan.in_place = from.at("inplace").boolean();
  if (from.has("reuse_resources")) plan.reuse_resources = from.at("reuse_resources").boolean();
  if (from.has("writes_input")) plan.writes_input = from.at("writes_input").boolean();
  if (from.has("use_double_scratch_buffer")) plan.double_scratch = from.at("use_double_scratch_buffer").boolean();
  if (from.has("num_threads_per_block")) {
    plan.threads_per_block = static_cast<std::int32_t>(from.at("num_threads_per_block").integer(1, 65536));
  }
  if (from.has("buffer_alignment")) {
    plan.buffer_alignment = from.at("buffer_alignment").integer(1, std::int64_t{1} << 30);
  }
  if (from.has("min_message_size")) plan.min_message_bytes = from.at("min_message_size").unsigned_integer();
  if (from.has("max_message_size")) plan.max_message_bytes = from.at("max_message_size").unsigned_integer();
  if (plan.min_message_bytes > plan.max_message_bytes) {
    from.at("min_message_size").fail("greater than \"max_message_size\"");
  }
  if (from.has("root")) {
    plan.root = static_cast<std::int32_t>(from.at("root").integer(0, static_cast<std::int64_t>(kMaxRanks) - 1));
  }
}

void read_header(const Json& root, Plan& plan) {
  const Cursor from(root);
  from.allow_only({"version", "name", "collective", "protocol", "inplace", "reuse_resources", "gpus",
                   "num_threads_per_block", "use_double_scratch_buffer", "buffer_alignment", "min_message_size",
                   "max_message_size", "root", "source", "template", "writes_input"});
  read_names(from, plan);
  read_settings(from, plan);
}

Symmetry read_symmetry(const Cursor& from) {
  from.expect_object();
  from.allow_only({"dims", "input_blocks", "output_blocks"});
  const Cursor list = from.at("dims");
  std::vector<std::int32_t> dims;
  for (std::size_t i = 0; i < list.array_size(kMaxDims); ++i) {
    dims.push_back(static_cast<std::int32_t>(list.at(i).integer(1, kMaxRanks)));
  }
  std::array<std::int32_t, 2> blocks{1, 1};
  for (const auto& [key, buffer] : {std::pair{"input_blocks", 0}, std::pair{"output_blocks", 1}}) {
    if (from.has(key)) blocks[buffer] = static_cast<std::int32_t>(from.at(key).integer(1, kMaxRanks));
  }
  return Symmetry(std::move(dims), blocks);
}

}  // namespace

std::variant<Plan, Template> read_plan_or_template(std::string_view text) {
  if (text.size() > kMaxTextBytes) throw_at("", "longer than " + std::to_string(kMaxTextBytes) + " bytes");
  Plan plan;
  std::vector<std::vector<Operation>> operations;  // of the rank that is being read, by thread block
  std::size_t all = 0;
  const auto take_operation = [&](const std::vector<std::size_t>& at, Json&& element) {
    const Cursor from(element, path_of(at[0], at[1], at[2]));
    if (at[1] >= kMaxBlocks) from.fail("more than " + std::to_string(kMaxBlocks) + " thread blocks");
    if (at[2] >= kMaxOperations) from.fail("more than " + std::to_string(kMaxOperations) + " operations");
    if (operations.size() <= at[1]) operations.resize(at[1] + 1);
    operations[at[1]].push_back(read_operation(from, static_cast<std::int32_t>(at[0]), false));
    all += 1 + operations[at[1]].back().body.size();
    if (all > kMaxAllOperations)
      from.fail("more than " + std::to_string(kMaxAllOperations) + " operations of all ranks");
  };
  const auto take_rank = [&](const std::vector<std::size_t>& at, Json&& element) {
    const Cursor gpu(element, "/gpus/" + std::to_string(at[0]));
    gpu.expect_object();
    if (at[0] >= kMaxRanks) gpu.fail("more than " + std::to_string(kMaxRanks) + " ranks");
    plan.ranks.push_back(read_rank(gpu, static_cast<std::int32_t>(at[0]), std::exchange(operations, {})));
  };
  const Json root = read_document(text, {{{"gpus"}, take_rank}, {{"gpus", "threadblocks", "ops"}, take_operation}});
  const Json* const gpus = root.find("gpus");
  if (gpus == nullptr || gpus->as<Json::Array>() == nullptr) throw_at("", "\"gpus\" is missing or no array");
  if (plan.ranks.empty()) throw_at("/gpus", "a plan has at least one rank");
  read_header(root, plan);
  if (root.find("template") != nullptr) {
    if (plan.ranks.size() != 1) throw_at("/gpus", "a template has rank 0 only");
    plan.reduce = common_reduction(plan);
    Symmetry symmetry = read_symmetry(Cursor(root).at("template"));
    check_first_rank(plan, static_cast<std::size_t>(symmetry.ranks()));
    return Template{std::move(plan), std::move(symmetry)};
  }
  check_structure(plan);
  plan.reduce = common_reduction(plan);
  return plan;
}

Plan read_plan(std::string_view text) {
  auto read = read_plan_or_template(text);
  if (auto* plan = std::get_if<Plan>(&read)) return std::move(*plan);
  return written_out(std::get<Template>(read));
}

}  // namespace tutti::plan
