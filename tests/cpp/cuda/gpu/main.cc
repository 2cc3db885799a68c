// Rank threads share GPUs: each stream needs a hardware queue of its own, or a kernel that waits would hold up the one
// that it waits for. Set before CUDA starts.
#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
