#include "algorithm/plan/plan_cache.h"

#include <utility>

#include "base/whole_file.h"
#include "plan/reader.h"
#include "plan/verifier/verifier.h"
#include "tutti/error.h"

namespace tutti {
namespace {

constexpr std::size_t kMostPlans = 128;
constexpr std::size_t kMostFiles = 4096;
constexpr std::size_t kAnyRanks = 0;

[[noreturn]] void throw_rejected(const plan::Verdict& verdict) {
  std::string text = std::string(plan::to_string(verdict.fault.kind)) + ": " + verdict.fault.message;
  // Most faults name their operations where they say what is wrong with them.
  for (const plan::Site& site : verdict.fault.sites) {
    const std::string place = plan::describe(site);
    if (text.find(place) == std::string::npos) text += "; " + place;
  }
  throw_error(ErrorKind::kInvalidArgument, text + " (see `tutti plan check`)");
}

}  // namespace

PlanCache& PlanCache::of_process() {
  static PlanCache cache;
  return cache;
}

// relaxed: only a thread's own id says something to it, and that is what it has stored itself.
PlanCache::Use::Use(const PlanCache& cache) : cache_(cache) {
  if (cache_.user_.load(std::memory_order_relaxed) == std::this_thread::get_id()) return;
  Deadline never = Deadline::never();
  turn_ = take_turn(cache_.mutex_, never, [] { return std::string("waiting for another thread's proof of a plan"); });
  cache_.user_.store(std::this_thread::get_id(), std::memory_order_relaxed);
}

PlanCache::Use::~Use() {
  if (turn_) cache_.user_.store(std::thread::id(), std::memory_order_relaxed);  // relaxed: as above
}

ProvenPlan PlanCache::load(const std::string& path, std::size_t ranks, const std::string& cache_folder) {
  const FileStamp stamp = FileStamp::of(path);  // not in turn: ranks that are threads look at many files
  const Use use(*this);
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
    proven = prove_for(ranks, whole_file(path), cache_folder);
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

ProvenPlan PlanCache::prove(const std::string& text, const std::string& cache_folder) {
  const Use use(*this);
  return prove_for(kAnyRanks, text, cache_folder);
}

ProvenPlan PlanCache::prove_for(std::size_t ranks, const std::string& text, const std::string& cache_folder) {
  const Digest content = sha256(text);
  if (const auto found = plans_.find(content); found != plans_.end()) {
    const std::size_t made_for = found->second->ranks.size();
    const bool wanted = ranks == kAnyRanks || made_for == ranks;
    return {wanted ? found->second : nullptr, content, made_for};
  }
  plan::Plan plan = plan::read_plan(text);
  if (ranks != kAnyRanks && plan.ranks.size() != ranks) return {nullptr, content, plan.ranks.size()};
  const VerdictStore store(cache_folder);
  std::optional<plan::Verdict> verdict = store.find(content, plan);
  if (!verdict) {
    verdict = plan::verify(plan);
    ++proofs_;
    if (verdict->outcome == plan::Outcome::kRejected) throw_rejected(*verdict);
    store.keep(content, *verdict);
  }
  const std::size_t made_for = plan.ranks.size();
  if (!verdict->repairs.empty()) plan = plan::repaired(std::move(plan), verdict->repairs);
  ProvenPlan proven{std::make_shared<const plan::Plan>(std::move(plan)), content, made_for};
  remember(content, proven.plan);
  return proven;
}

void PlanCache::remember(const Digest& content, std::shared_ptr<const plan::Plan> plan) {
  if (plans_.count(content) != 0) return;  // by a handler, meanwhile
  if (plans_.size() >= kMostPlans) {
    plans_.erase(order_.front());
    order_.pop_front();
  }
  plans_.emplace(content, std::move(plan));
  order_.push_back(content);
}

std::uint64_t PlanCache::reads() const {
  const Use use(*this);
  return reads_;
}

std::uint64_t PlanCache::proofs() const {
  const Use use(*this);
  return proofs_;
}

}  // namespace tutti
