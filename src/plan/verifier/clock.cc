// Pages of clocks: copied when written while shared, dropped for the other's where that knows all.
#include "plan/verifier/clock.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace tutti::plan {
namespace {

constexpr std::size_t kPagesAStep = 8;  // that are only looked at; also spans

}  // namespace

bool ClockVector::before(const Span& left, const Span& right) {
  return std::pair{left.component, left.first} < std::pair{right.component, right.first};
}

// Since spans touch neither each other nor the watermark, one of them covers it all.
bool ClockVector::knows(const Page& page, const Span& span) {
  if (page.ticks[span.component] >= span.last) return true;
  const auto after = std::upper_bound(page.spans.begin(), page.spans.end(), span, before);
  if (after == page.spans.begin()) return false;
  const Span& found = *std::prev(after);
  return found.component == span.component && found.last >= span.last;
}

const ClockVector::Page* ClockVector::page_of(std::uint32_t component) const {
  const std::size_t index = component / kPageComponents;
  return pages_ && index < pages_->size() ? pages_->list[index].get() : nullptr;
}

bool ClockVector::covers(std::uint32_t component, std::uint32_t tick) const {
  const Page* page = page_of(component);
  return tick == 0 || (page != nullptr && knows(*page, {component % kPageComponents, tick, tick}));
}

ClockVector::Pages& ClockVector::writable_pages(std::size_t count, Budget& budget) {
  if (!pages_) {
    pages_ = std::make_shared<Pages>(budget);
  } else if (pages_.use_count() > 1) {
    budget.spend(pages_->size() / kPagesAStep + 1);
    pages_ = std::make_shared<Pages>(*pages_);
  }
  if (pages_->size() < count) {
    pages_->list.reserve(count);
    pages_->held.become(sizeof(Pages) + count * sizeof(pages_->list[0]));
    pages_->list.resize(count);
  }
  return *pages_;
}

ClockVector::Page& ClockVector::writable_page_of(std::uint32_t component, Budget& budget) {
  const std::size_t index = component / kPageComponents;
  std::shared_ptr<Page>& page = writable_pages(index + 1, budget).list[index];
  if (!page) {
    page = std::make_shared<Page>(budget);
  } else if (page.use_count() > 1) {
    page = std::make_shared<Page>(*page);
  }
  return *page;
}

// Joins spans that overlap or touch, and lets watermarks swallow those that they reach.
void ClockVector::normalise(Page& page) {
  std::vector<Span>& spans = page.spans;
  page.held.budget().spend(spans.size() / kPagesAStep + 1);
  std::size_t kept = 0;
  for (const Span span : spans) {
    std::uint32_t& tick = page.ticks[span.component];
    Span* last = kept > 0 && spans[kept - 1].component == span.component ? &spans[kept - 1] : nullptr;
    if (span.first <= tick + 1) {
      tick = std::max(tick, span.last);
    } else if (last != nullptr && span.first <= last->last + 1) {
      last->last = std::max(last->last, span.last);
    } else {
      spans[kept++] = span;
    }
  }
  spans.resize(kept);
  page.held.become(sizeof(Page) + spans.capacity() * sizeof(Span));
}

void ClockVector::set(std::uint32_t component, std::uint32_t tick, Budget& budget) {
  const Page* page = page_of(component);
  const std::uint32_t within = component % kPageComponents;
  if (tick == 0 || (page != nullptr && page->ticks[within] >= tick)) return;
  Page& changed = writable_page_of(component, budget);
  changed.ticks[within] = tick;
  if (!changed.spans.empty()) normalise(changed);
}

void ClockVector::add(std::uint32_t component, std::uint32_t tick, Budget& budget) {
  if (covers(component, tick)) return;
  Page& page = writable_page_of(component, budget);
  const Span span{component % kPageComponents, tick, tick};
  page.spans.insert(std::upper_bound(page.spans.begin(), page.spans.end(), span, before), span);
  normalise(page);
}

// One of the two, if it knows all that the other does.
std::shared_ptr<ClockVector::Page> ClockVector::joined(const std::shared_ptr<Page>& left,
                                                       const std::shared_ptr<Page>& right) {
  bool left_less = false;
  bool right_less = false;
  for (std::size_t i = 0; i < kPageComponents; ++i) {
    left_less |= left->ticks[i] < right->ticks[i];
    right_less |= left->ticks[i] > right->ticks[i];
  }
  const bool plain = left->spans.empty() && right->spans.empty();
  if (plain && !left_less) return left;
  if (plain && !right_less) return right;
  const auto includes = [](const Page& all, const Page& some) {
    return std::all_of(some.spans.begin(), some.spans.end(), [&all](const Span& span) { return knows(all, span); });
  };
  if (!left_less && includes(*left, *right)) return left;
  if (!right_less && includes(*right, *left)) return right;
  auto page = std::make_shared<Page>(left->held.budget());
  for (std::size_t i = 0; i < kPageComponents; ++i) page->ticks[i] = std::max(left->ticks[i], right->ticks[i]);
  std::merge(left->spans.begin(), left->spans.end(), right->spans.begin(), right->spans.end(),
             std::back_inserter(page->spans), before);
  normalise(*page);
  return page;
}

void ClockVector::join(const ClockVector& other) {
  if (pages_ == other.pages_ || !other.pages_) return;
  if (!pages_) {
    pages_ = other.pages_;
    return;
  }
  Budget& budget = pages_->held.budget();
  budget.spend(other.pages_->size() / kPagesAStep + 1);
  const std::size_t both = std::min(pages_->size(), other.pages_->size());
  bool as_other = pages_->size() <= other.pages_->size();  // … is what comes out
  for (std::size_t i = 0; i < other.pages_->size(); ++i) {
    const std::shared_ptr<Page>& theirs = other.pages_->list[i];
    const std::shared_ptr<Page> mine = i < both ? pages_->list[i] : nullptr;
    if (mine == theirs) continue;
    budget.spend(1 + (theirs ? theirs->spans.size() / kPagesAStep : 0));
    const std::shared_ptr<Page> page = !theirs ? mine : !mine ? theirs : joined(mine, theirs);
    as_other = as_other && page == theirs;
    if (page != mine) writable_pages(other.pages_->size(), budget).list[i] = page;
  }
  if (as_other) pages_ = other.pages_;
}

}  // namespace tutti::plan
