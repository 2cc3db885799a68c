// What the driver says of links is believed, and nothing else is: without its word no link has native atomics, on which
// lines of 128 bytes rest. The test plays the driver (links/cuda_runtime_api.h).
#include "device/cuda/links.h"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace tutti::cuda::test {
namespace {

constexpr int kMostGpus = 4;

template <typename T>
using OfPairs = std::array<std::array<T, kMostGpus>, kMostGpus>;

// A machine's GPUs, and what is asked of them.
struct Driver {
  int count = 3;
  bool counts = true;
  std::array<bool, kMostGpus> has_properties{true, true, true, true};
  OfPairs<int> reaches{}, native{};
  OfPairs<bool> knows{};  // else it refuses the question
  cudaError_t last = cudaSuccess;

  Driver() {
    for (auto& from : reaches) from.fill(1);
    for (auto& from : knows) from.fill(true);
  }
  cudaError_t answer(bool well, cudaError_t otherwise) {
    if (!well) last = otherwise;
    return well ? cudaSuccess : otherwise;
  }
};
Driver driver;

std::string uuid_of(int gpu) { return std::string(15, 'u') + static_cast<char>('0' + gpu); }

class Links : public ::testing::Test {
 protected:
  Links() { driver = Driver(); }
  // An error that is left would be taken for that of the next call.
  ~Links() override { EXPECT_EQ(driver.last, cudaSuccess) << "an error is left"; }
};

TEST_F(Links, HaveNativeAtomicsWhereTheDriverSaysSo) {
  EXPECT_FALSE(has_native_atomics(0, uuid_of(1)));
  driver.native[0][1] = 1;
  EXPECT_TRUE(has_native_atomics(0, uuid_of(1)));
  EXPECT_FALSE(has_native_atomics(0, uuid_of(2))) << "another link";
  EXPECT_FALSE(has_native_atomics(1, uuid_of(0))) << "the other way, which is asked apart";
  EXPECT_EQ(reach_of(0, 1), CudaReach::kAtomic);
  EXPECT_EQ(reach_of(1, 0), CudaReach::kMapped);
}

TEST_F(Links, OfAGpuToItselfNeedNoWord) {
  driver.reaches[1][1] = 0;
  EXPECT_TRUE(has_native_atomics(1, uuid_of(1)));
  EXPECT_EQ(reach_of(1, 1), CudaReach::kAtomic);
}

TEST_F(Links, ThatReachNothingHaveNone) {
  driver.native[0][1] = 1;
  driver.reaches[0][1] = 0;
  EXPECT_FALSE(has_native_atomics(0, uuid_of(1)));
  EXPECT_EQ(reach_of(0, 1), CudaReach::kNone);
  EXPECT_EQ(reach_of(0, driver.count), CudaReach::kNone) << "there is no such device";
}

TEST_F(Links, ThatTheDriverDoesNotKnowHaveNone) {
  driver.native[0][1] = 1;
  driver.knows[0][1] = false;
  EXPECT_FALSE(has_native_atomics(0, uuid_of(1)));
  EXPECT_EQ(reach_of(0, 1), CudaReach::kMapped);
}

// Of another process, which CUDA_VISIBLE_DEVICES hides from this one.
TEST_F(Links, ToAGpuThatIsNotSeenHaveNone) {
  driver.native[0] = {1, 1, 1, 1};
  EXPECT_FALSE(has_native_atomics(0, uuid_of(3)));
  EXPECT_FALSE(has_native_atomics(0, ""));
  driver.counts = false;
  EXPECT_FALSE(has_native_atomics(0, uuid_of(1)));
}

TEST_F(Links, AreAskedForBehindAGpuThatSaysNothing) {
  driver.native[0][2] = 1;
  driver.has_properties[1] = false;
  EXPECT_FALSE(has_native_atomics(0, uuid_of(1)));
  EXPECT_TRUE(has_native_atomics(0, uuid_of(2)));
}

}  // namespace
}  // namespace tutti::cuda::test

using tutti::cuda::test::driver;

cudaError_t cudaGetDeviceCount(int* count) {
  if (driver.counts) *count = driver.count;
  return driver.answer(driver.counts, cudaErrorNotSupported);
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  const bool known = device < driver.count && driver.has_properties[static_cast<std::size_t>(device)];
  const std::string uuid = tutti::cuda::test::uuid_of(device);
  if (known) std::copy(uuid.begin(), uuid.end(), properties->uuid.bytes);
  return driver.answer(known, cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  const bool known = device < driver.count && peer < driver.count && device != peer;
  if (known) *can = driver.reaches[static_cast<std::size_t>(device)][static_cast<std::size_t>(peer)];
  return driver.answer(known, cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute, int from, int to) {
  const auto f = static_cast<std::size_t>(from), t = static_cast<std::size_t>(to);
  const bool known = attribute == cudaDevP2PAttrNativeAtomicSupported && driver.knows[f][t];
  *value = 1;  // of a question that fails it says nothing
  if (known) *value = driver.native[f][t];
  return driver.answer(known, cudaErrorNotSupported);
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = driver.last;
  driver.last = cudaSuccess;
  return error;
}
