// What a fuzz target defines. fuzz_main.cc drives it under libFuzzer.
//
// Thread rule: one thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace tutti::fuzz {

// Takes any bytes. A crash, a leak, a sanitizer's report or a broken require() is a finding.
void run(std::string_view bytes);

// Well-formed inputs to begin with: mutations of them reach what random bytes never would.
std::vector<std::string> seeds();

// Aborts, naming what does not hold, and errno.
void require(bool holds, const char* what);

}  // namespace tutti::fuzz
