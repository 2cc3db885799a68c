#include "algorithm/collection.h"

#include <algorithm>

#include "algorithm/net/net_algorithms.h"
#include "algorithm/shm/shm_algorithms.h"
#include "algorithm/two_level/two_level_algorithms.h"
#include "tutti/error.h"

namespace tutti {

std::shared_ptr<const AlgorithmCollection> AlgorithmCollection::defaults() {
  auto collection = std::make_shared<AlgorithmCollection>();
  for (const AlgorithmList& family : {slot_algorithms(), mapped_algorithms(), pulled_algorithms(), staged_algorithms(),
                                      leader_algorithms(), carrier_algorithms(), net_algorithms()}) {
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
    ++preferred_[static_cast<std::size_t>((*next)->collective())];
    list.insert(list.begin(), std::move(*next));
  }
}

Selector::Selector(std::shared_ptr<const AlgorithmCollection> collection, std::vector<TuningRule> rules,
                   std::string_view forced)
    : collection_(std::move(collection)) {
  for (TuningRule& rule : rules) add_rule(std::move(rule));
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
    throw_error(ErrorKind::kInvalidArgument,
                "TUTTI_ALGORITHM (or Options(algorithm=...), hint tutti.algorithm): there is no '" + std::string(item) +
                    "'; known are:" + (known.empty() ? " (no such collective)" : known));
  }
}

void Selector::add_rule(TuningRule rule) {
  std::vector<const Algorithm*> order;
  for (const TuningRule::Measured& measured : rule.measured) {
    if (const Algorithm* algorithm = named(rule.collective, measured.algorithm)) order.push_back(algorithm);
  }
  rules_.add(std::move(rule), std::move(order));
}

// What the user has named himself is not meant.
const Algorithm* Selector::named(Collective collective, std::string_view name) const noexcept {
  const auto& candidates = collection_->of(collective);
  for (std::size_t i = collection_->preferred(collective); i < candidates.size(); ++i) {
    if (candidates[i]->name() == name) return candidates[i].get();
  }
  return nullptr;
}

const Selector::Rule* Selector::rule_for(const CallShape& shape) const noexcept {
  if (shape.uneven || shape.mapped_input != shape.mapped_output) return nullptr;
  return rules_.find(shape.collective, shape.dtype, shape.mapped_input, shape.bytes);
}

const Algorithm* Selector::select(const CallShape& shape) const noexcept {
  const auto index = static_cast<std::size_t>(shape.collective);
  if (const Algorithm* choice = forced_[index]; choice != nullptr && choice->refusal(shape) == nullptr) return choice;
  const auto& candidates = collection_->of(shape.collective);
  const std::size_t preferred = collection_->preferred(shape.collective);
  for (std::size_t i = 0; i < preferred; ++i) {
    if (candidates[i]->refusal(shape) == nullptr) return candidates[i].get();
  }
  if (const Rule* rule = rule_for(shape)) {
    for (const Algorithm* algorithm : rule->order) {
      if (algorithm->refusal(shape) == nullptr) return algorithm;
    }
  }
  for (std::size_t i = preferred; i < candidates.size(); ++i) {
    if (candidates[i]->refusal(shape) == nullptr) return candidates[i].get();
  }
  return nullptr;
}

std::string Selector::explain(const CallShape& shape) const {
  // What the first choice leaves open is asked again with the announcements.
  CallShape announced = shape;
  announced.announced = true;
  CallShape before = shape;
  before.mapped_input = before.mapped_output = false;
  const Algorithm* choice = select(before);
  const Rule* rule = rule_for(before);
  if (choice == nullptr || !choice->announces()) {
    choice = select(announced);
    rule = rule_for(announced);
  }
  const bool forced = choice != nullptr && forced_[static_cast<std::size_t>(shape.collective)] == choice;
  const std::int64_t chosen_ns = rule != nullptr && choice != nullptr ? measured_ns(rule->said, choice->name()) : -1;
  std::string text;
  const auto& candidates = collection_->of(shape.collective);
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const Algorithm& algorithm = *candidates[i];
    const char* reason = algorithm.refusal(algorithm.announces() ? before : announced);
    const bool own = i < collection_->preferred(shape.collective);
    const std::int64_t ns = rule != nullptr && !own ? measured_ns(rule->said, algorithm.name()) : -1;
    const bool chosen = &algorithm == choice;
    text += std::string(chosen ? "-> " : "   ") + std::string(algorithm.name()) + ": ";
    if (chosen) {
      text += std::string(algorithm.summary()) + (forced ? " (forced by TUTTI_ALGORITHM)" : "");
    } else if (reason != nullptr) {
      text += std::string("not here: ") + reason;
    } else if (ns >= 0 && chosen_ns > ns) {
      text += "would work; measured, but not faster by enough";
    } else {
      text += ns >= 0 && chosen_ns >= 0 ? "would work; slower" : "would work; another is preferred";
    }
    if (ns >= 0) text += "; " + time_text(ns);
    text += '\n';
  }
  if (rule == nullptr) return text;
  for (const TuningRule::Measured& other : rule->said.measured) {
    if (named(shape.collective, other.algorithm) == nullptr) {
      text += "   " + other.algorithm + ": measured, but chosen nowhere; " + time_text(other.ns) + '\n';
    }
  }
  return text + source_of_times(rule->said) + '\n';
}

}  // namespace tutti
