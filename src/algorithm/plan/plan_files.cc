#include "algorithm/plan/plan_files.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>
#include <utility>

#include "algorithm/plan/plan_cache.h"
#include "algorithm/user/identity.h"
#include "base/bytes.h"
#include "tutti/error.h"

namespace tutti {
namespace {

// Not by std::filesystem: the C++ library's own way through a folder ends the process where memory is wanting (GCC 12).
std::vector<std::string> files_at(const std::string& path) {
  struct Close {
    void operator()(DIR* folder) const noexcept { ::closedir(folder); }
  };
  const std::unique_ptr<DIR, Close> folder(::opendir(path.c_str()));
  if (folder == nullptr) {
    if (errno != EMFILE && errno != ENFILE && errno != ENOMEM) return {path};  // a file; its reader says what is wrong
    throw_error(ErrorKind::kExhausted, path + ": cannot be read: " + describe_errno(errno));
  }
  constexpr std::string_view kJson = ".json";
  const std::string before = path.ends_with('/') ? path : path + '/';
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* const entry = ::readdir(folder.get())) {
    const std::string_view name = entry->d_name;
    if (name.size() > kJson.size() && name.ends_with(kJson)) names.push_back(before + std::string(name));
    errno = 0;
  }
  if (errno != 0) throw_error(ErrorKind::kInvalidArgument, path + ": cannot be read: " + describe_errno(errno));
  if (names.empty()) throw_error(ErrorKind::kInvalidArgument, path + ": no *.json in this folder");
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

PlanFiles load_plans(const std::string& path, int ranks, const std::string& cache_folder) try {
  PlanFiles plans;
  if (path.empty()) return plans;
  Identity all;
  for (const std::string& name : files_at(path)) {
    ProvenPlan proven = PlanCache::of_process().load(name, static_cast<std::size_t>(ranks), cache_folder);
    if (proven.plan == nullptr) continue;
    plans.files.push_back({name, std::move(proven.plan)});
    all.add(text_of(proven.content));
  }
  if (plans.files.empty()) return plans;
  plans.identity = fold(all.value());
  return plans;
} catch (const Error& error) {
  // Who meets it may not know that the file is read, nor why.
  throw_error(error.kind(), std::string("TUTTI_PLAN_PATH: ") + error.what());
}

}  // namespace tutti
