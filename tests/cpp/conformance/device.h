// What every device must do, as one suite over devices.
//
// A device joins by a test file that includes this header and says INSTANTIATE_TEST_SUITE_P(Name, DeviceConformance,
// ::testing::Values(DeviceSource{"name", find})). The tests themselves are in device.cc. They reach the device's memory
// by its copy() only.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <ostream>
#include <string>

#include "device/device.h"

namespace tutti::test {

struct DeviceSource {
  std::string name;  // as the device says it
  std::function<Device&()> find;
};

inline std::ostream& operator<<(std::ostream& out, const DeviceSource& source) { return out << source.name; }

class DeviceConformance : public ::testing::TestWithParam<DeviceSource> {};

}  // namespace tutti::test
