#include "plan/explorer/explorer.h"

#include "plan/explorer/cells.h"
#include "plan/explorer/unroll.h"

namespace tutti::plan::explorer {
namespace {

Finding explore_one(const Plan& plan, const Setting& setting, Limits limits) {
  Finding finding;
  Terms terms;
  try {
    const Graph graph = unroll(plan, setting, terms, limits.events);
    Search search(graph, terms, plan.ranks.size(), limits);
    finding.outcome = search.run();
    finding.states = search.states();
    finding.what = search.what();
  } catch (const WrongPlan& wrong) {
    finding.outcome = Search::Outcome::kWrong;
    finding.what = wrong.what;
  } catch (const TooManyEvents&) {
    finding.outcome = Search::Outcome::kUndecided;
  }
  finding.what += describe(setting);
  return finding;
}

}  // namespace

Finding explore(const Plan& plan, Limits limits) {
  Finding finding;
  for (const Setting& setting : settings_for(plan)) {
    const Finding now = explore_one(plan, setting, limits);
    const std::size_t states = finding.states + now.states;
    const bool worse = now.outcome == Search::Outcome::kWrong ||
                       (now.outcome == Search::Outcome::kUndecided && finding.outcome == Search::Outcome::kRight);
    if (worse) finding = now;
    finding.states = states;
    if (finding.outcome == Search::Outcome::kWrong) return finding;
  }
  return finding;
}

}  // namespace tutti::plan::explorer
