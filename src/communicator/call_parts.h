// Calls that reach a device in several parts, kernels or copies, which the other ranks take for one call.
//
// A rank that has launched some parts and cannot launch the rest is behind the others from then on. If the program then
// makes the call again, its first part meets what the others have launched as the last one, and nothing tells the two
// apart: the same call, and the same number on the device. So whatever can fail is made before the first part, and what
// fails behind it ends the group.
//
// Thread rule: no state; each function as what it calls.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <new>
#include <string>

namespace tutti {

// For an error of the group. Short where there is no memory for more: within the string.
inline std::string incomplete_call(const std::exception& error) noexcept {
  try {
    return std::string("a call that other ranks make as a whole was launched here only in part: ") + error.what();
  } catch (const std::bad_alloc&) {
    return "incomplete call";
  }
}

// Does `issue()`. What it throws is passed on; if launched() has changed by then, fail(why) comes first.
template <class Launched, class Issue, class Fail>
void issue_as_a_whole(const Launched& launched, const Issue& issue, const Fail& fail) {
  const auto before = launched();
  try {
    issue();
  } catch (const std::exception& error) {
    if (launched() != before) fail(incomplete_call(error));
    throw;
  }
}

// Launches [0, bytes) in pieces of `segment` bytes; the last may be shorter. prepare(begin) makes what the segment that
// begins there needs, for the first, which stands for all but the last, and for the last; launch(begin, prepared)
// follows for each when both are there.
template <class Prepare, class Launch>
void launch_segments(std::size_t bytes, std::size_t segment, const Prepare& prepare, const Launch& launch) {
  if (bytes == 0) return;
  const std::size_t last = (bytes - 1) / segment * segment;
  const auto whole = prepare(std::size_t{0});
  const auto rest = last > 0 ? prepare(last) : whole;
  for (std::size_t begin = 0; begin < last; begin += segment) launch(begin, whole);
  launch(last, rest);
}

}  // namespace tutti
