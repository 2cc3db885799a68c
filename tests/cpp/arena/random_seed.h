// The seed of a randomized test: TUTTI_TEST_SEED, else a fresh one; a failure prints it.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <random>

namespace tutti::test {

inline std::uint32_t random_seed() {
  const char* const text = std::getenv("TUTTI_TEST_SEED");
  return text != nullptr ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : std::random_device{}();
}

}  // namespace tutti::test
