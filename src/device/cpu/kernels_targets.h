// The instruction sets that the kernels are compiled for; included before anything of Highway.
//
// SSSE3 adds compile time and serves no machine that runs PyTorch; the scalable sets (SVE, RVV) cannot keep vectors in
// arrays and structures, as the loops do: such machines run the NEON kernels, or the portable ones (EMU128).
//
// Highway leaves EMU128 out for compilers before GCC 12.3, whose vectorizer miscompiles it (GCC bug 106322). The build
// turns that vectorizer off for these files, so the portable kernels are right.
//
// Sanitizers make these files slow to compile, once for each set: TUTTI_ONE_TARGET, which such builds define, keeps the
// one that every machine of the architecture has. Other builds test all of them.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
#define HWY_BROKEN_EMU128 0
#if defined(TUTTI_ONE_TARGET)
#define HWY_COMPILE_ONLY_STATIC
#endif
