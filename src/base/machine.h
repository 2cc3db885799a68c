// What a measurement of this machine holds for: another processor, more cores or a larger cache, and it is void.
//
// Thread rule: values; this_machine() may be called from any thread.
#pragma once

#include <cstddef>
#include <string>

namespace tutti {

struct Machine {
  std::string cpu;  // model, as the system names it
  int cores = 1;    // of the machine, bounded by the control group's quota; which of them a process is bound to is not
                    // the machine's affair
  std::size_t last_cache_bytes = 0;

  bool operator==(const Machine&) const = default;
};

Machine this_machine();

// Twelve hexadecimal digits of a machine, for names of files.
std::string short_id(const Machine& machine);

// "AMD EPYC 7R13, 2 cores, 32768 KB of cache"
std::string describe(const Machine& machine);

}  // namespace tutti
