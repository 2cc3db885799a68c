#include "algorithm/plan/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "algorithm/plan/plan_cache.h"
#include "tutti/error.h"

namespace tutti {
namespace {

namespace fs = std::filesystem;

std::vector<std::string> files_at(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return {path};
  std::vector<std::string> names;
  for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().extension() == ".json") names.push_back(entry->path().string());
  }
  if (error) throw_error(ErrorKind::kInvalidArgument, path + ": cannot be read: " + error.message());
  if (names.empty()) throw_error(ErrorKind::kInvalidArgument, path + ": no *.json in this folder (TUTTI_PLAN_PATH)");
  std::sort(names.begin(), names.end());
  return names;
}

// FNV-1a.
constexpr std::uint64_t kBasis = 0xcbf29ce484222325ULL;
std::uint64_t hash(std::uint64_t state, const Digest& digest) {
  for (const std::byte b : digest) state = (state ^ std::to_integer<std::uint64_t>(b)) * 0x100000001b3ULL;
  return state;
}

// Never 0.
std::uint32_t folded(std::uint64_t state) {
  const auto half = static_cast<std::uint32_t>(state ^ (state >> 32));
  return half != 0 ? half : 1;
}

}  // namespace

PlanFiles load_plans(const std::string& path, int ranks, const std::string& cache_folder) {
  PlanFiles plans;
  if (path.empty()) return plans;
  std::uint64_t state = kBasis;
  for (const std::string& name : files_at(path)) {
    ProvenPlan proven = PlanCache::of_process().load(name, static_cast<std::size_t>(ranks), cache_folder);
    if (proven.plan == nullptr) continue;
    plans.files.push_back({name, std::move(proven.plan), folded(hash(kBasis, proven.content))});
    state = hash(state, proven.content);
  }
  if (plans.files.empty()) return plans;
  plans.identity = folded(state);
  return plans;
}

}  // namespace tutti
