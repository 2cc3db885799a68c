// Vector clocks of the two orders: X (has happened before) and D (… and its data are visible).
//
// A third, "published", is the part of D that even an X edge passes on: what was written before a call began is visible
// system-wide, because the start of a call orders this rank's earlier work. published ⊆ D ⊆ X.
//
// A clock is a set of events (component, tick). It holds most components as a watermark: all ticks up to it. A packet
// tells that one unit of one operation is done, not what its thread block did before it; such events lie beyond the
// watermark and are kept as spans of ticks. A thread block sends the units of one operation one after the other, so a
// reader of all of them keeps one span, however long the message.
//
// What clocks know grows by joining, and at thousands of ranks most of what two clocks know is the same. So a clock is
// a table of pages, and pages and tables are shared until they differ: a join looks at no page that both have. They
// are counted in the budget of the proof, which outlives them.
//
// Thread rule: one thread for all clocks that share pages.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "plan/verifier/budget.h"

namespace tutti::plan {

class ClockVector {
 public:
  bool covers(std::uint32_t component, std::uint32_t tick) const;

  void join(const ClockVector& other);

  // All ticks of the component up to this one.
  void set(std::uint32_t component, std::uint32_t tick, Budget& budget);

  // This one tick.
  void add(std::uint32_t component, std::uint32_t tick, Budget& budget);

  // True if both are one in memory; then what is done to both need be done once.
  bool shares(const ClockVector& other) const { return pages_ == other.pages_; }

 private:
  static constexpr std::uint32_t kPageComponents = 64;
  // Ticks first to last of a component; at least one tick lies between any two spans, and before the first one.
  struct Span {
    std::uint32_t component = 0;  // within the page
    std::uint32_t first = 0;
    std::uint32_t last = 0;

    bool operator==(const Span&) const = default;
  };
  struct Page {
    explicit Page(Budget& counted) : held(counted, sizeof(Page)) {}

    std::array<std::uint32_t, kPageComponents> ticks{};
    std::vector<Span> spans;  // ascending
    Held held;
  };
  struct Pages {
    explicit Pages(Budget& counted) : held(counted, sizeof(Pages)) {}

    std::size_t size() const { return list.size(); }

    std::vector<std::shared_ptr<Page>> list;  // may be null
    Held held;
  };

  static bool before(const Span& left, const Span& right);
  static bool knows(const Page& page, const Span& span);
  static std::shared_ptr<Page> joined(const std::shared_ptr<Page>& left, const std::shared_ptr<Page>& right);
  static void normalise(Page& page);

  const Page* page_of(std::uint32_t component) const;
  Page& writable_page_of(std::uint32_t component, Budget& budget);
  Pages& writable_pages(std::size_t count, Budget& budget);

  std::shared_ptr<Pages> pages_;  // null: nothing
};

struct Clock {
  ClockVector happened;
  ClockVector visible;
  ClockVector published;

  // Signals and waits pass both orders on alike, so in most plans X and D stay one.
  void join_data(const Clock& other) {
    const bool one = happened.shares(visible) && other.happened.shares(other.visible);
    happened.join(other.happened);
    if (one) {
      visible = happened;
    } else {
      visible.join(other.visible);
    }
    published.join(other.published);
  }
  void set_data(std::uint32_t component, std::uint32_t tick, Budget& budget) {
    const bool one = happened.shares(visible);
    if (one) visible = {};  // so that the pages are written in place
    happened.set(component, tick, budget);
    if (one) {
      visible = happened;
    } else {
      visible.set(component, tick, budget);
    }
  }
  void join_order(const Clock& other) {
    happened.join(other.happened);
    visible.join(other.published);
    published.join(other.published);
  }
};

}  // namespace tutti::plan
