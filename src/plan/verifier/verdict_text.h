// A verdict as text, to be kept in a file: that a plan is proven, and with which repairs.
//
// A rejection is not written: whoever gets one wants to see why, and that is found out anew.
//
// Thread rule: pure functions.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "plan/verifier/verdict.h"

namespace tutti::plan {

// Which verifier this is: a hash of its sources and the compiler. A verdict of another one proves nothing here.
std::string_view verifier_build() noexcept;

// One line an entry; `subject` says which plan it is about. The verdict is not a rejection.
std::string write_verdict(const Verdict& verdict, std::string_view subject);

// Nothing unless the text is, to the byte, what write_verdict() of this very verifier makes of some verdict on
// `subject`. Verdict::checked is not kept.
std::optional<Verdict> read_verdict(std::string_view text, std::string_view subject);

}  // namespace tutti::plan
