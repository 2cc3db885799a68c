#include "device/registry.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>

#include "base/dynamic_linker.h"
#include "tutti/error.h"

namespace tutti {
namespace {

#if defined(__APPLE__)
constexpr const char* kLibrarySuffix = ".dylib";
#else
constexpr const char* kLibrarySuffix = ".so";
#endif

// The name becomes part of a path: only what cannot leave the directory.
bool is_device_name(std::string_view name) noexcept {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

[[noreturn]] void refuse(const std::string& name, const std::string& why) {
  throw_error(ErrorKind::kUnsupported, "device '" + name + "': " + why);
}

}  // namespace

std::vector<std::string> DeviceRegistry::default_directories(std::string_view plugin_path) {
  std::vector<std::string> directories;
  while (!plugin_path.empty()) {
    const std::size_t end = std::min(plugin_path.find(':'), plugin_path.size());
    if (end > 0) directories.emplace_back(plugin_path.substr(0, end));
    plugin_path.remove_prefix(std::min(end + 1, plugin_path.size()));
  }
  Dl_info info{};
  // Any symbol of this library will do.
  if (::dladdr(reinterpret_cast<const void*>(&cpu_device), &info) != 0 && info.dli_fname != nullptr) {
    const std::string file = info.dli_fname;
    const std::size_t slash = file.rfind('/');
    directories.push_back(slash == std::string::npos ? "." : file.substr(0, slash));
  }
  return directories;
}

Device& DeviceRegistry::find(std::string_view name) {
  if (name == "cpu") return cpu_device();
  const std::lock_guard lock(mutex_);
  const auto known = devices_.find(name);
  if (known != devices_.end()) return *known->second;
  std::string key(name);
  DevicePtr device = load(key);
  return *devices_.emplace(std::move(key), std::move(device)).first->second;
}

std::string DeviceRegistry::path_of(const std::string& name) const {
  if (!is_device_name(name)) refuse(name, "not a device name (lower-case letters, digits and '_')");
  const std::string file = "libtutti_" + name + kLibrarySuffix;
  std::string looked;
  for (const std::string& directory : directories_) {
    looked += (looked.empty() ? "" : ", ") + directory;
    if (::access((directory + "/" + file).c_str(), F_OK) == 0) return directory + "/" + file;
  }
  refuse(name, "no " + file + " in " + (looked.empty() ? "any directory (none given)" : looked) +
                   "; install it there or name its directory in TUTTI_PLUGIN_PATH");
}

DeviceRegistry::DevicePtr DeviceRegistry::load(const std::string& name) const {
  const std::string path = path_of(name);
  // RTLD_LOCAL: plug-ins must not see each other's symbols. Never closed, not even when it is refused: its constructors
  // have run, and what they started, registered or allocated needs its code and data.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) refuse(name, last_dl_error());
  const auto entry = reinterpret_cast<DevicePluginEntry>(::dlsym(library, kDevicePluginSymbol));
  if (entry == nullptr) refuse(name, path + " is no Tutti plug-in: it lacks the symbol " + kDevicePluginSymbol);
  const DevicePlugin* plugin = entry();
  if (plugin == nullptr) refuse(name, path + " refused to load");
  if (plugin->abi_version != kDeviceAbiVersion) {
    refuse(name, path + " has device ABI " + std::to_string(plugin->abi_version) + ", this library has " +
                     std::to_string(kDeviceAbiVersion) + ": install plug-in and library of one release");
  }
  if (name != plugin->name) refuse(name, path + " serves device '" + plugin->name + "'");
  DevicePtr device(plugin->create(), plugin->destroy);
  if (device == nullptr) refuse(name, path + " made no device");
  return device;
}

}  // namespace tutti
