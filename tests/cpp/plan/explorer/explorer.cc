#include "plan/explorer/explorer.h"

#include "plan/explorer/cells.h"
#include "plan/explorer/unroll.h"

namespace tutti::plan::explorer {

Finding explore(const Plan& plan, Limits limits) {
  Finding finding;
  for (const Setting& setting : settings_for(plan)) {
    const std::string when =
        setting.filled < 0 ? "" : ", in a message of " + std::to_string(setting.filled) + " chunks a rank block";
    Terms terms;
    try {
      const Graph graph = unroll(plan, setting, terms);
      Search search(graph, terms, plan.ranks.size(), limits);
      const Search::Outcome outcome = search.run();
      finding.states += search.states();
      if (outcome == Search::Outcome::kUndecided) finding.outcome = outcome;
      if (outcome == Search::Outcome::kWrong) return {outcome, search.what() + when, finding.states};
    } catch (const WrongPlan& wrong) {
      return {Search::Outcome::kWrong, wrong.what + when, finding.states};
    }
  }
  return finding;
}

}  // namespace tutti::plan::explorer
