// Decides by exhaustive search whether a small plan can go wrong: a wrong output, a deadlock, a counter that is not
// reset, an access out of bounds.
//
// Shares no code with the verifier, and works differently: it moves values, not clocks, through every order of events
// that makes a difference (search.h), on a memory that shows a store to each of its readers when it likes, as long as
// nothing was released to them (event_graph.h). For two or three ranks.
#pragma once

#include <cstddef>
#include <string>

#include "plan/explorer/search.h"
#include "plan/plan.h"

namespace tutti::plan::explorer {

struct Finding {
  Search::Outcome outcome = Search::Outcome::kRight;
  std::string what;        // kWrong: what goes wrong
  std::size_t states = 0;  // at which the search has branched
};

// Of a plan that check_structure accepts, under every setting (settings_for). `limits` bound each.
Finding explore(const Plan& plan, Limits limits = {});

}  // namespace tutti::plan::explorer
