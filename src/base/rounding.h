// Whole numbers of units. Thread rule: functions of their arguments; any thread.
#pragma once

#include <type_traits>

namespace tutti {

// Both not negative, `unit` positive, and their sum fits.
template <class Integer>
constexpr Integer ceil_div(Integer amount, std::type_identity_t<Integer> unit) noexcept {
  return (amount + unit - 1) / unit;
}
template <class Integer>
constexpr Integer round_up(Integer amount, std::type_identity_t<Integer> unit) noexcept {
  return ceil_div(amount, unit) * unit;
}

}  // namespace tutti
