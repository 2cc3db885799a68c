#include "algorithm/plan/plan_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include "plan/reader.h"
#include "plan/verifier/verifier.h"
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

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw_error(ErrorKind::kInvalidArgument, path + ": cannot be read (TUTTI_PLAN_PATH)");
  return text;
}

// FNV-1a, with the length between texts.
std::uint64_t hash(std::uint64_t state, const std::string& text) {
  for (const char c : text) state = (state ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  return (state ^ text.size()) * 0x100000001b3ULL;
}

plan::Plan proven(plan::Plan plan) {
  const plan::Verdict verdict = plan::verify(plan);
  if (verdict.outcome == plan::Outcome::kRejected) {
    std::string text = std::string(plan::to_string(verdict.fault.kind)) + ": " + verdict.fault.message;
    for (const plan::Site& site : verdict.fault.sites) text += "; " + plan::describe(site);
    throw_error(ErrorKind::kInvalidArgument, text + " (see `tutti plan check`)");
  }
  return verdict.repairs.empty() ? plan : plan::repaired(std::move(plan), verdict.repairs);
}

}  // namespace

PlanFiles load_plans(const std::string& path, int ranks) {
  PlanFiles plans;
  if (path.empty()) return plans;
  std::uint64_t state = 0xcbf29ce484222325ULL;
  for (const std::string& name : files_at(path)) {
    const std::string text = text_of(name);
    try {
      plan::Plan plan = plan::read_plan(text);
      if (plan.ranks.size() != static_cast<std::size_t>(ranks)) continue;
      plans.files.push_back({name, std::make_shared<const plan::Plan>(proven(std::move(plan)))});
    } catch (const Error& error) {
      throw_error(error.kind(), name + ": " + error.what());
    }
    state = hash(state, text);
  }
  if (plans.files.empty()) return plans;
  plans.identity = static_cast<std::uint32_t>(state ^ (state >> 32));
  if (plans.identity == 0) plans.identity = 1;
  return plans;
}

}  // namespace tutti
