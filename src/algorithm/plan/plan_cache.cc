#include "algorithm/plan/plan_cache.h"

#include <fstream>
#include <iterator>
#include <utility>

#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMostPlans = 128;
constexpr std::size_t kMostFiles = 4096;

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw_error(ErrorKind::kInvalidArgument, "cannot be read");
  return text;
}

[[noreturn]] void throw_rejected(const plan::Verdict& verdict) {
  std::string text = std::string(plan::to_string(verdict.fault.kind)) + ": " + verdict.fault.message;
  for (const plan::Site& site : verdict.fault.sites) text += "; " + plan::describe(site);
  throw_error(ErrorKind::kInvalidArgument, text + " (see `tutti plan check`)");
}

}  // namespace

PlanCache& PlanCache::of_process() {
  static PlanCache cache;
  return cache;
}

ProvenPlan PlanCache::load(const std::string& path, std::size_t ranks, const std::string& cache_folder) {
  const std::lock_guard lock(mutex_);
  const FileStamp stamp = FileStamp::of(path);
  if (const auto known = files_.find(path); known != files_.end() && known->second.stamp == stamp) {
    const File& file = known->second;
    if (file.ranks != ranks) return {nullptr, file.content, file.ranks};
    if (const auto found = plans_.find(file.content); found != plans_.end()) {
      return {found->second, file.content, file.ranks};
    }
  }
  const bool settled = stamp.settled();
  ProvenPlan proven;
  ++reads_;
  try {
    proven = prove(text_of(path), ranks, cache_folder);
  } catch (const Error& error) {
    throw_error(error.kind(), path + ": " + error.what());
  }
  // Only what was read while the file stood still may be told by its times.
  if (settled && FileStamp::of(path) == stamp) {
    if (files_.size() >= kMostFiles) files_.clear();
    files_[path] = {stamp, proven.content, proven.ranks};
  }
  return proven;
}

ProvenPlan PlanCache::prove(const std::string& text, std::size_t ranks, const std::string& cache_folder) {
  const Digest content = sha256(text);
  if (const auto found = plans_.find(content); found != plans_.end()) {
    const std::size_t made_for = found->second->ranks.size();
    return {made_for == ranks ? found->second : nullptr, content, made_for};
  }
  plan::Plan plan = plan::read_plan(text);
  if (plan.ranks.size() != ranks) return {nullptr, content, plan.ranks.size()};
  const VerdictStore store(cache_folder);
  std::optional<plan::Verdict> verdict = store.find(content, plan);
  if (!verdict) {
    verdict = plan::verify(plan);
    ++proofs_;
    if (verdict->outcome == plan::Outcome::kRejected) throw_rejected(*verdict);
    store.keep(content, *verdict);
  }
  if (!verdict->repairs.empty()) plan = plan::repaired(std::move(plan), verdict->repairs);
  ProvenPlan proven{std::make_shared<const plan::Plan>(std::move(plan)), content, ranks};
  remember(content, proven.plan);
  return proven;
}

void PlanCache::remember(const Digest& content, std::shared_ptr<const plan::Plan> plan) {
  if (plans_.size() >= kMostPlans) {
    plans_.erase(order_.front());
    order_.pop_front();
  }
  plans_.emplace(content, std::move(plan));
  order_.push_back(content);
}

std::uint64_t PlanCache::reads() const {
  const std::lock_guard lock(mutex_);
  return reads_;
}

std::uint64_t PlanCache::proofs() const {
  const std::lock_guard lock(mutex_);
  return proofs_;
}

}  // namespace tutti
