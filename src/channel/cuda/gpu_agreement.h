// The first exchange of a group on GPUs, before its ranks share memory: what they must have alike, and what follows
// from all of them. Knows nothing of CUDA.
//
// Thread rule: values.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "bootstrap/agreed_settings.h"
#include "bootstrap/bootstrap.h"

namespace tutti::cuda {

// What a rank tells the others.
struct GpuCard {
  AgreedSettings settings;
  int max_blocks = 0;  // of a kernel, as it wants it; 0: no wish
  std::string model;   // of its GPU
};

struct GpuAgreement {
  int max_blocks = 0;               // the least that a rank wants; 0: none has a wish
  std::vector<std::string> models;  // by rank
  std::string differences;          // of optional settings: compare_settings()
};

// All ranks call it. Throws the same Error(kMismatch) on all of them, naming the settings that differ. A rank that has
// failed before has told so under its topic (tell_failure).
GpuAgreement agree_on_gpus(Bootstrap& bootstrap, const GpuCard& own, std::chrono::milliseconds timeout);

}  // namespace tutti::cuda
