#include "fuzz_main.h"

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>

// libFuzzer's interface, in its own names.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);
extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size,
                                               unsigned int seed);

namespace tutti::fuzz {

void require(bool holds, const char* what) {
  const int error = errno;  // of a system call, if what does not hold is about one
  if (holds) return;
  std::fprintf(stderr, "does not hold: %s (errno %d: %s)\n", what, error, std::strerror(error));
  std::abort();
}

}  // namespace tutti::fuzz

// Without a corpus libFuzzer starts with inputs of a few bytes, too short for the seeds.
int LLVMFuzzerInitialize(int* argc, char*** argv) {
  static char no_length_control[] = "-len_control=0";
  static std::vector<char*> arguments;
  arguments.assign(*argv, *argv + *argc);
  arguments.insert(arguments.begin() + 1, no_length_control);  // before what was given, which so prevails
  *argc = static_cast<int>(arguments.size());
  arguments.push_back(nullptr);
  *argv = arguments.data();
  return 0;
}

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  try {
    tutti::fuzz::run({reinterpret_cast<const char*>(data), size});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thrown: %s\n", error.what());
    std::abort();
  }
  return 0;
}

// Instead of a corpus of binary files: now and then a seed takes the place of the input.
std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size, std::size_t max_size, unsigned int seed) {
  static const std::vector<std::string> seeds = tutti::fuzz::seeds();
  constexpr unsigned kEvery = 16;
  if (seed % kEvery == 0 && !seeds.empty()) {
    const std::string& chosen = seeds[seed / kEvery % seeds.size()];
    size = std::min(chosen.size(), max_size);
    std::memcpy(data, chosen.data(), size);
  }
  return LLVMFuzzerMutate(data, size, max_size);
}
