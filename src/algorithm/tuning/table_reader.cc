#include <algorithm>
#include <functional>

#include "algorithm/tuning/table.h"
#include "base/names.h"
#include "base/whole_file.h"
#include "plan/json_document.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using plan::Cursor;
using plan::Json;

constexpr std::size_t kMostCells = 1 << 20;
constexpr std::size_t kMostMeasured = 1024;
constexpr std::size_t kMostPlans = 4096;
constexpr std::size_t kMostText = 4096;
constexpr std::int64_t kMostRanks = 1 << 20;

template <typename Enum>
Enum named(const Cursor& from, const char* what, int count) {
  if (const auto value = tutti::named<Enum>(from.text(kMostText), count)) return *value;
  from.fail(std::string("there is no such ") + what);
}

Machine read_machine(const Cursor& from) {
  Machine machine;
  machine.cpu = from.at("cpu").text(kMostText);
  machine.cores = static_cast<int>(from.at("cores").integer(1, INT32_MAX));
  machine.last_cache_bytes = static_cast<std::size_t>(from.at("last_cache_bytes").integer(0, INT64_MAX));
  return machine;
}

TunedPlan read_plan_entry(const Cursor& from) {
  from.allow_only({"name", "collective", "ranks", "file", "sha256"});
  TunedPlan plan;
  plan.name = from.at("name").text(kMostText);
  plan.collective = named<Collective>(from.at("collective"), "collective", kCollectiveCount);
  plan.ranks = static_cast<int>(from.at("ranks").integer(1, kMostRanks));
  plan.file = from.at("file").text(kMostText);
  plan.sha256 = from.at("sha256").text(kMostText);
  if (plan.file.empty()) from.at("file").fail("empty");
  return plan;
}

TuningCell read_cell(const Cursor& from) {
  from.allow_only(
      {"ranks", "crowded", "gpus", "collective", "dtype", "tensors", "bytes", "default", "choice", "measured"});
  TuningCell cell;
  cell.ranks = static_cast<int>(from.at("ranks").integer(1, kMostRanks));
  cell.crowded = from.at("crowded").boolean();
  if (from.has("gpus")) cell.gpus = from.at("gpus").text(kMostText);
  if (from.has("gpus") && cell.gpus.empty()) from.at("gpus").fail("empty");
  cell.collective = named<Collective>(from.at("collective"), "collective", kCollectiveCount);
  cell.dtype = named<DataType>(from.at("dtype"), "element type", kDataTypeCount);
  const std::string tensors = from.at("tensors").text(kMostText);
  if (tensors != "private" && tensors != "mapped") from.at("tensors").fail("\"private\" or \"mapped\" is expected");
  cell.mapped = tensors == "mapped";
  cell.bytes = static_cast<std::size_t>(from.at("bytes").integer(0, INT64_MAX / 4));
  if (from.has("default")) from.at("default").text(kMostText);
  cell.choice = from.at("choice").text(kMostText);
  const Cursor measured = from.at("measured");
  for (std::size_t i = 0; i < measured.array_size(kMostMeasured); ++i) {
    const Cursor entry = measured.at(i);
    entry.allow_only({"algorithm", "ns"});
    cell.measured.push_back({entry.at("algorithm").text(kMostText), entry.at("ns").integer(0, INT64_MAX)});
  }
  if (std::none_of(cell.measured.begin(), cell.measured.end(),
                   [&](const MeasuredTime& time) { return time.algorithm == cell.choice; })) {
    from.at("choice").fail("it is not among those measured");
  }
  return cell;
}

// The table without its cells, each of which goes to `take`.
Json read_top(std::string_view text, const std::function<void(std::size_t, Json&&)>& take) {
  if (text.size() > kMostFileBytes) plan::throw_at("", "longer than " + std::to_string(kMostFileBytes) + " bytes");
  const auto take_cell = [&take](const std::vector<std::size_t>& at, Json&& cell) { take(at[0], std::move(cell)); };
  return plan::read_document(text, {{{"cells"}, take_cell}});
}

TuningOrigin read_origin(const Cursor& from) {
  TuningOrigin origin;
  origin.version = static_cast<int>(from.at("version").integer(1, INT32_MAX));
  origin.tutti = from.at("tutti").text(kMostText);
  origin.machine = read_machine(from.at("machine"));
  return origin;
}

TuningTable read_table(std::string_view text) {
  TuningTable table;
  const Json root = read_top(text, [&](std::size_t index, Json&& element) {
    const Cursor cell(element, "/cells/" + std::to_string(index));
    if (index >= kMostCells) cell.fail("more than " + std::to_string(kMostCells) + " cells");
    table.cells.push_back(read_cell(cell));
  });
  const Cursor from(root);
  from.allow_only({"version", "tutti", "machine", "measured_at", "plans", "cells"});
  table.origin = read_origin(from);
  if (table.origin.version != kTuningVersion) {
    from.at("version").fail("this Tutti reads version " + std::to_string(kTuningVersion));
  }
  from.at("cells").array_size(0);  // the cells themselves have been taken out of it
  if (from.has("measured_at")) from.at("measured_at").text(kMostText);
  const Cursor plans = from.at("plans");
  for (std::size_t i = 0; i < plans.array_size(kMostPlans); ++i) table.plans.push_back(read_plan_entry(plans.at(i)));
  return table;
}

}  // namespace

TuningOrigin read_tuning_origin(std::string_view text) {
  return plan::naming("", [&] {
    const Json root = read_top(text, [](std::size_t, Json&&) {});
    return read_origin(Cursor(root));
  });
}

TuningTable read_tuning_table(std::string_view text) {
  return plan::naming("", [&] { return read_table(text); });
}

}  // namespace tutti
