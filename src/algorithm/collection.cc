#include "algorithm/collection.h"

#include <algorithm>

#include "algorithm/host/host_algorithms.h"
#include "algorithm/net/net_algorithms.h"
#include "tutti/error.h"

namespace tutti {

std::shared_ptr<const AlgorithmCollection> AlgorithmCollection::defaults() {
  auto collection = std::make_shared<AlgorithmCollection>();
  for (const AlgorithmList& family : {slot_algorithms(), mapped_algorithms(), staged_algorithms(), net_algorithms()}) {
    for (const auto& algorithm : family) collection->add(algorithm);
  }
  return collection;
}

void AlgorithmCollection::add(std::shared_ptr<const Algorithm> algorithm) {
  by_collective_[static_cast<std::size_t>(algorithm->collective())].push_back(std::move(algorithm));
}

void AlgorithmCollection::prefer(std::vector<std::shared_ptr<const Algorithm>> algorithms) {
  for (auto next = algorithms.rbegin(); next != algorithms.rend(); ++next) {
    auto& list = by_collective_[static_cast<std::size_t>((*next)->collective())];
    list.insert(list.begin(), std::move(*next));
  }
}

Selector::Selector(std::shared_ptr<const AlgorithmCollection> collection, std::vector<TuningRule> rules,
                   std::string_view forced)
    : collection_(std::move(collection)) {
  for (TuningRule& rule : rules) rules_[static_cast<std::size_t>(rule.collective)].push_back(std::move(rule));
  for (auto& list : rules_) {
    std::stable_sort(list.begin(), list.end(),
                     [](const TuningRule& a, const TuningRule& b) { return a.max_bytes < b.max_bytes; });
  }
  while (!forced.empty()) {
    const std::size_t comma = std::min(forced.find(','), forced.size());
    force(forced.substr(0, comma));
    forced.remove_prefix(std::min(comma + 1, forced.size()));
  }
}

void Selector::force(std::string_view item) {
  const std::size_t equals = item.find('=');
  const std::string_view wanted = equals == std::string_view::npos ? item : item.substr(equals + 1);
  std::string known;
  bool found = false;
  for (int i = 0; i < kCollectiveCount; ++i) {
    const auto collective = static_cast<Collective>(i);
    if (equals != std::string_view::npos && item.substr(0, equals) != to_string(collective)) continue;
    for (const auto& algorithm : collection_->of(collective)) {
      known += " " + std::string(to_string(collective)) + "=" + std::string(algorithm->name());
      if (algorithm->name() != wanted) continue;
      forced_[static_cast<std::size_t>(i)] = algorithm.get();
      found = true;
    }
  }
  if (!found) {
    throw_error(ErrorKind::kInvalidArgument, "TUTTI_ALGORITHM: there is no '" + std::string(item) +
                                                 "'; known are:" + (known.empty() ? " (no such collective)" : known));
  }
}

const Algorithm* Selector::select(const CallShape& shape) const noexcept {
  const auto index = static_cast<std::size_t>(shape.collective);
  if (const Algorithm* choice = forced_[index]; choice != nullptr && choice->refusal(shape) == nullptr) return choice;
  const auto& candidates = collection_->of(shape.collective);
  for (const TuningRule& rule : rules_[index]) {
    if (shape.bytes > rule.max_bytes) continue;
    for (const auto& algorithm : candidates) {
      if (algorithm->name() == rule.algorithm && algorithm->refusal(shape) == nullptr) return algorithm.get();
    }
  }
  for (const auto& algorithm : candidates) {
    if (algorithm->refusal(shape) == nullptr) return algorithm.get();
  }
  return nullptr;
}

std::string Selector::explain(const CallShape& shape) const {
  // Before the announcements nobody knows what is mapped: what the first choice leaves open is asked again with them.
  CallShape announced = shape;
  announced.announced = true;
  CallShape before = shape;
  before.mapped_input = before.mapped_output = false;
  const Algorithm* choice = select(before);
  if (choice == nullptr || !choice->announces()) choice = select(announced);
  std::string text;
  for (const auto& algorithm : collection_->of(shape.collective)) {
    const char* reason = algorithm->refusal(algorithm->announces() ? before : announced);
    text += std::string(algorithm.get() == choice ? "-> " : "   ") + std::string(algorithm->name()) + ": ";
    if (algorithm.get() == choice) {
      text += std::string(algorithm->summary()) +
              (forced_[static_cast<std::size_t>(shape.collective)] == choice ? " (forced by TUTTI_ALGORITHM)" : "");
    } else {
      text += reason != nullptr ? std::string("not here: ") + reason : "would work; another is preferred";
    }
    text += '\n';
  }
  return text;
}

}  // namespace tutti
