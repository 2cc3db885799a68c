// A device that tells a test what is asked of it: libtutti_told.so.
#pragma once

#include <functional>
#include <string>

#include "device/device.h"

namespace tutti::test {

// On the thread that asks. Each may be empty; they change while nothing is made.
struct Told {
  std::function<void(int device)> beginning;  // a thread begins that works for this device
  std::function<void()> meeting;              // a communicator meets its peers next
  std::function<void(const std::string& id, const DeviceOptions& options)> making;  // one of that id is made
  std::function<void()> setting_timeout;  // it is given a time limit, and does not have it yet
};

// The plug-in's, found by its name.
constexpr char kToldSymbol[] = "tutti_told";
using ToldSymbol = Told*();

}  // namespace tutti::test
