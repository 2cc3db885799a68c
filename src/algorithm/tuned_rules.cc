#include "algorithm/tuned_rules.h"

#include <cstdio>

namespace tutti {

std::int64_t measured_ns(const TuningRule& rule, std::string_view algorithm) noexcept {
  for (const TuningRule::Measured& measured : rule.measured) {
    if (measured.algorithm == algorithm) return measured.ns;
  }
  return -1;
}

std::string time_text(std::int64_t ns) {
  char text[32];
  const double us = static_cast<double>(ns) / 1000;
  if (us < 1000) {
    std::snprintf(text, sizeof text, "%.3g us", us);
  } else {
    std::snprintf(text, sizeof text, "%.3g ms", us / 1000);
  }
  return text;
}

std::string source_of_times(const TuningRule& rule) {
  return "times: the tuning table's, of " + std::to_string(rule.bytes) + " bytes, " +
         std::string(to_string(rule.dtype)) + (rule.mapped ? ", mapped" : ", private");
}

}  // namespace tutti
