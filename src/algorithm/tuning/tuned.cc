#include "algorithm/tuning/tuned.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

#include "algorithm/plan/plan_cache.h"
#include "base/file_stamp.h"
#include "base/secret.h"
#include "base/whole_file.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::string_view kPlanPrefix = "plan:";

struct TableFile {
  FileStamp stamp;
  std::shared_ptr<const TuningTable> table;  // null if it is not for this machine
  std::string complaint;
  std::uint64_t identity = 0;
};

bool is_folder(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 && S_ISDIR(st.st_mode);
}

// The table to be read; empty if there is none. One that was asked for by name must be there.
std::string table_path(const Config& config) {
  if (config.tuning_path == "none") return {};
  const bool chosen = config.tuning_path.empty();
  if (chosen && config.user_config.empty()) return {};
  const std::string& path = chosen ? config.user_config : config.tuning_path;
  if (!chosen && !is_folder(path)) return path;
  std::string file = tuning_file(path);
  return FileStamp::of(file) == FileStamp() ? std::string() : file;
}

std::string foreign(const TuningOrigin& origin) {
  if (origin.version != kTuningVersion) return "has version " + std::to_string(origin.version) + " of the format";
  if (origin.tutti != TUTTI_VERSION) return "was measured by Tutti " + origin.tutti;
  if (origin.machine != this_machine()) return "is of another machine (" + describe(origin.machine) + ")";
  return {};
}

TableFile read_table_file(const std::string& path) {
  TableFile file;
  const std::string text = whole_file(path);
  if (const std::string difference = foreign(read_tuning_origin(text)); !difference.empty()) {
    file.complaint = "the tuning table " + path + " " + difference + " and is not used: run `tutti tune`";
    return file;
  }
  file.table = std::make_shared<const TuningTable>(read_tuning_table(text));
  const Digest digest = sha256(text);
  std::memcpy(&file.identity, digest.data(), sizeof file.identity);
  file.identity |= 1;  // never 0
  return file;
}

// As the last group of this process has read it, if it is still the same.
TableFile find_table(const std::string& path) {
  static std::mutex mutex;  // guards `known`; a leaf
  static std::map<std::string, TableFile> known;
  const std::lock_guard lock(mutex);
  const FileStamp stamp = FileStamp::of(path);
  if (const auto found = known.find(path); found != known.end() && found->second.stamp == stamp) {
    TableFile again = found->second;
    again.complaint.clear();  // told already
    return again;
  }
  const bool settled = stamp.settled();
  TableFile file = read_table_file(path);
  file.stamp = stamp;
  if (settled) known[path] = file;
  return file;
}

std::string resolved(const std::string& table, const std::string& file) {
  if (file.starts_with('/')) return file;
  const std::size_t slash = table.rfind('/');
  return slash == std::string::npos ? file : table.substr(0, slash + 1) + file;
}

// A plan that no cell chooses is one for CPUs.
bool is_for(const TuningTable& table, const TunedPlan& plan, TunedDevice device) {
  bool on_cpus = false, on_gpus = false;
  for (const TuningCell& cell : table.cells) {
    if (cell.choice != plan.name || cell.ranks != plan.ranks || cell.collective != plan.collective) continue;
    (cell.gpus.empty() ? on_cpus : on_gpus) = true;
  }
  return device == TunedDevice::kGpu ? on_gpus : on_cpus || !on_gpus;
}

std::vector<PlanFile> load_tuned_plans(const std::string& path, const TuningTable& table, int ranks, TunedDevice device,
                                       const std::string& cache) {
  std::vector<PlanFile> plans;
  for (std::size_t i = 0; i < table.plans.size(); ++i) {
    const TunedPlan& entry = table.plans[i];
    if (entry.ranks != ranks || !is_for(table, entry, device)) continue;
    const std::string at = "/plans/" + std::to_string(i) + ": ";
    const std::string file = resolved(path, entry.file);
    ProvenPlan proven;
    try {
      proven = PlanCache::of_process().load(file, static_cast<std::size_t>(ranks), cache);
    } catch (const Error& error) {
      throw_error(error.kind(), at + error.what());
    }
    if (proven.plan == nullptr || hexadecimal(proven.content) != entry.sha256 ||
        std::string(kPlanPrefix) + proven.plan->name != entry.name) {
      throw_error(ErrorKind::kInvalidArgument,
                  at + file + " is not the plan that was measured: run `tutti tune` again, or remove the table");
    }
    plans.push_back({file, proven.plan});
  }
  return plans;
}

// Halfway to the next measured size, on a scale of ratios.
std::size_t last_before(std::size_t bytes, std::size_t next) {
  return std::max(bytes, static_cast<std::size_t>(std::sqrt(static_cast<double>(bytes) * static_cast<double>(next))));
}

TuningRule rule_of(const TuningCell& cell) {
  TuningRule rule;
  rule.collective = cell.collective;
  rule.dtype = cell.dtype;
  rule.mapped = cell.mapped;
  rule.bytes = cell.bytes;
  rule.max_bytes = cell.bytes * 2;  // of the largest size
  for (const MeasuredTime& time : cell.measured) rule.measured.push_back({time.algorithm, time.ns});
  std::stable_sort(rule.measured.begin(), rule.measured.end(),
                   [](const auto& a, const auto& b) { return a.ns < b.ns; });
  const auto choice = std::find_if(rule.measured.begin(), rule.measured.end(),
                                   [&](const auto& m) { return m.algorithm == cell.choice; });
  std::rotate(rule.measured.begin(), choice, choice + 1);
  return rule;
}

}  // namespace

std::string tuning_file(const std::string& folder) { return folder + "/tuning-" + short_id(this_machine()) + ".json"; }

Tuning load_tuning(const Config& config, int ranks, TunedDevice device) {
  Tuning tuning;
  tuning.path = table_path(config);
  if (tuning.path.empty() || ranks < 2) return tuning;
  try {
    TableFile file = find_table(tuning.path);
    tuning.complaint = std::move(file.complaint);
    if (file.table == nullptr) return tuning;
    tuning.table = std::move(file.table);
    tuning.identity = file.identity;
    tuning.plans = load_tuned_plans(tuning.path, *tuning.table, ranks, device, cache_folder(config));
  } catch (const Error& error) {
    // The user's folder is read without being named.
    const std::string why = config.tuning_path.empty() ? "" : "TUTTI_TUNING_PATH: ";
    throw_error(error.kind(), why + tuning.path + ": " + error.what());
  }
  return tuning;
}

namespace {

template <class Wanted>
std::vector<TuningRule> rules_where(const TuningTable& table, const Wanted& wanted) {
  std::vector<const TuningCell*> cells;
  for (const TuningCell& cell : table.cells) {
    if (wanted(cell)) cells.push_back(&cell);
  }
  const auto kind = [](const TuningCell& cell) { return std::tuple(cell.collective, cell.dtype, cell.mapped); };
  std::stable_sort(cells.begin(), cells.end(), [&](const TuningCell* a, const TuningCell* b) {
    return std::tuple(kind(*a), a->bytes) < std::tuple(kind(*b), b->bytes);
  });
  std::vector<TuningRule> rules;
  for (std::size_t i = 0; i < cells.size(); ++i) {
    TuningRule rule = rule_of(*cells[i]);
    if (i + 1 < cells.size() && kind(*cells[i + 1]) == kind(*cells[i])) {
      rule.max_bytes = last_before(rule.bytes, cells[i + 1]->bytes);
    }
    rules.push_back(std::move(rule));
  }
  return rules;
}

}  // namespace

std::vector<TuningRule> rules_of(const TuningTable& table, int ranks, bool crowded) {
  return rules_where(table, [&](const TuningCell& cell) {
    return cell.gpus.empty() && cell.ranks == ranks && cell.crowded == crowded;
  });
}

std::vector<TuningRule> rules_on_gpus(const TuningTable& table, int ranks, const std::string& gpus) {
  return rules_where(table, [&](const TuningCell& cell) { return cell.gpus == gpus && cell.ranks == ranks; });
}

}  // namespace tutti
