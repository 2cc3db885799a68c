// Finds a device by name: the CPU is built in, any other is a plug-in, libtutti_<name>.so, that is loaded when it is
// first asked for, so that a machine without a GPU needs nothing of it.
//
// A plug-in exports one symbol, `tutti_device_plugin`, which gives its ABI version and makes the Device. It is looked
// for in TUTTI_PLUGIN_PATH (directories separated by ':'), then beside libtutti.so. A plug-in stays loaded as long as
// the process lives: its code may be running in threads that nobody here knows.
//
// Ownership: the registry owns the devices that it made. Thread rule: all members may be called from any thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"

namespace tutti {

// Raised by one whenever Device or DevicePlugin changes its layout or meaning.
inline constexpr std::uint32_t kDeviceAbiVersion = 17;

// What a plug-in gives. `abi_version` comes first and never moves, so that any two versions can tell each other apart.
struct DevicePlugin {
  std::uint32_t abi_version;
  const char* name;     // must be the name that was asked for
  Device* (*create)();  // may throw Error; the caller destroys it with `destroy`
  void (*destroy)(Device*) noexcept;
};

// The type of the exported symbol: extern "C" const DevicePlugin* tutti_device_plugin() noexcept.
using DevicePluginEntry = const DevicePlugin* (*)();
inline constexpr const char* kDevicePluginSymbol = "tutti_device_plugin";

class DeviceRegistry {
 public:
  // Looks for plug-ins in `directories`, in order.
  explicit DeviceRegistry(std::vector<std::string> directories) : directories_(std::move(directories)) {}
  // The directories of TUTTI_PLUGIN_PATH (`plugin_path`, may be empty), then the one that holds libtutti.so.
  static std::vector<std::string> default_directories(std::string_view plugin_path);

  // The device; the same one every time. Throws Error(kUnsupported) that says what was looked for, where, and why it
  // would not do; a later call tries again.
  Device& find(std::string_view name);
  // Path of the plug-in's file. Throws Error(kUnsupported) if there is none.
  std::string path_of(const std::string& name) const;

 private:
  using DevicePtr = std::unique_ptr<Device, void (*)(Device*)>;

  DevicePtr load(const std::string& name) const;

  const std::vector<std::string> directories_;
  std::mutex mutex_;  // guards devices_
  std::map<std::string, DevicePtr, std::less<>> devices_;
};

}  // namespace tutti
