// Whether two kernels that wait for each other run beside each other, by trying it.
//
// A GPU that is busy with something else lets one of them wait, and what is decided holds for the group's life: so a
// miss is tried again.
#pragma once

namespace tutti::cuda {

enum class Twins {
  kMet,
  kMissed,   // one of them was over before the other came
  kRefused,  // the GPU has no such launches
};

inline constexpr int kMostTwinTrials = 3;

// `once` tries it.
template <class Once>
bool twins_meet(const Once& once) {
  Twins how = Twins::kMissed;
  for (int tries = 0; tries < kMostTwinTrials && how == Twins::kMissed; ++tries) how = once();
  return how == Twins::kMet;
}

}  // namespace tutti::cuda
