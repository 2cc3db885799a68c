// Vector clocks of the two orders: X (has happened before) and D (… and its data are visible).
//
// A third, "published", is the part of D that even an X edge passes on: what was written before a call began is visible
// system-wide, because the start of a call orders this rank's earlier work. published ⊆ D ⊆ X.
//
// A packet tells that one unit of one operation is done, not what its thread block did before it. Such single events
// are kept beside the ticks as dots, until the ticks cover them.
//
// Clocks share their vectors: most joins change nothing.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

namespace tutti::plan {

class ClockVector {
 public:
  bool covers(std::uint32_t component, std::uint32_t tick) const {
    return at(component) >= tick || (dots_ && std::binary_search(dots_->begin(), dots_->end(), dot(component, tick)));
  }

  void join(const ClockVector& other) {
    join_ticks(other);
    if (!other.dots_ || other.dots_ == dots_) return;
    std::vector<std::uint64_t> merged;
    if (dots_) {
      std::set_union(dots_->begin(), dots_->end(), other.dots_->begin(), other.dots_->end(),
                     std::back_inserter(merged));
    } else {
      merged = *other.dots_;
    }
    keep(std::move(merged));
  }

  void set(std::uint32_t component, std::uint32_t tick, std::size_t components) {
    if (at(component) >= tick) return;
    auto changed = ticks_ ? std::make_shared<Ticks>(*ticks_) : std::make_shared<Ticks>(components, 0);
    (*changed)[component] = tick;
    ticks_ = std::move(changed);
  }

  void add_dot(std::uint32_t component, std::uint32_t tick) {
    if (covers(component, tick)) return;
    std::vector<std::uint64_t> more = dots_ ? *dots_ : std::vector<std::uint64_t>{};
    more.insert(std::upper_bound(more.begin(), more.end(), dot(component, tick)), dot(component, tick));
    keep(std::move(more));
  }

 private:
  using Ticks = std::vector<std::uint32_t>;

  static std::uint64_t dot(std::uint32_t component, std::uint32_t tick) {
    return std::uint64_t{component} << 32 | tick;
  }

  std::uint32_t at(std::uint32_t component) const { return ticks_ ? (*ticks_)[component] : 0; }

  void join_ticks(const ClockVector& other) {
    if (ticks_ == other.ticks_ || !other.ticks_) return;
    if (!ticks_ || other.includes(*this)) {
      ticks_ = other.ticks_;
    } else if (!includes(other)) {
      auto joined = std::make_shared<Ticks>(*ticks_);
      for (std::size_t i = 0; i < joined->size(); ++i) (*joined)[i] = std::max((*joined)[i], (*other.ticks_)[i]);
      ticks_ = std::move(joined);
    }
  }

  bool includes(const ClockVector& other) const {
    for (std::size_t i = 0; i < ticks_->size(); ++i) {
      if ((*ticks_)[i] < (*other.ticks_)[i]) return false;
    }
    return true;
  }

  void keep(std::vector<std::uint64_t> dots) {
    std::erase_if(dots, [this](std::uint64_t d) {
      return at(static_cast<std::uint32_t>(d >> 32)) >= static_cast<std::uint32_t>(d);
    });
    dots_ = dots.empty() ? nullptr : std::make_shared<const std::vector<std::uint64_t>>(std::move(dots));
  }

  std::shared_ptr<const Ticks> ticks_;                      // all of one length
  std::shared_ptr<const std::vector<std::uint64_t>> dots_;  // ascending
};

struct Clock {
  ClockVector happened;
  ClockVector visible;
  ClockVector published;

  void join_data(const Clock& other) {
    happened.join(other.happened);
    visible.join(other.visible);
    published.join(other.published);
  }
  void join_order(const Clock& other) {
    happened.join(other.happened);
    visible.join(other.published);
    published.join(other.published);
  }
};

}  // namespace tutti::plan
