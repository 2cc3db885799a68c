// The header of a plan from JSON, and the ranks one by one.
#include "plan/reader.h"

#include <string>
#include <utility>

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
                   "max_message_size", "root", "source"});
  read_names(from, plan);
  read_settings(from, plan);
}

}  // namespace

Plan read_plan(std::string_view text) {
  if (text.size() > kMaxTextBytes) throw_at("", "longer than " + std::to_string(kMaxTextBytes) + " bytes");
  Plan plan;
  const auto take = [&](std::size_t index, Json&& element) {
    const Cursor gpu(element, "/gpus/" + std::to_string(index));
    gpu.expect_object();
    if (index >= kMaxRanks) gpu.fail("more than " + std::to_string(kMaxRanks) + " ranks");
    plan.ranks.push_back(read_rank(gpu, static_cast<std::int32_t>(index)));
  };
  const Json root = read_document(text, "gpus", take);
  if (!root.contains("gpus") || !root["gpus"].is_array()) throw_at("", "\"gpus\" is missing or no array");
  if (plan.ranks.empty()) throw_at("/gpus", "a plan has at least one rank");
  read_header(root, plan);
  check_structure(plan);
  plan.reduce = common_reduction(plan);
  return plan;
}

}  // namespace tutti::plan
