// Loading devices: the built-in CPU, a good plug-in, and every way in which a plug-in can be wrong.
#include "device/registry.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "tutti/error.h"

namespace tutti {
namespace {

// TUTTI_TEST_PLUGINS is the folder into which the build puts the plug-ins of this test.
DeviceRegistry registry_of_test_plugins() { return DeviceRegistry({"/nonexistent", TUTTI_TEST_PLUGINS}); }

void expect_refusal(DeviceRegistry& registry, const std::string& name, const std::string& part) {
  try {
    registry.find(name);
    FAIL() << "device '" << name << "' was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUnsupported);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(DeviceRegistry, CpuNeedsNoPlugin) {
  DeviceRegistry registry({});
  Device& cpu = registry.find("cpu");
  EXPECT_EQ(&cpu, &cpu_device());
  EXPECT_EQ(cpu.name(), "cpu");
}

TEST(DeviceRegistry, CpuDeviceAllocatesAlignedMemory) {
  Device& cpu = cpu_device();
  auto* data = static_cast<float*>(cpu.allocate(8 * sizeof(float)));
  ASSERT_EQ(reinterpret_cast<std::uintptr_t>(data) % 64, 0u);
  const std::vector<float> a{1, 2, 3, 4, 5, 6, 7, 8};
  cpu.copy(data, a.data(), 8 * sizeof(float));
  EXPECT_EQ(data[7], 8.0f);
  cpu.deallocate(data, 8 * sizeof(float));
  EXPECT_THROW(cpu.allocate(std::size_t{1} << 62), Error);
}

TEST(DeviceRegistry, LoadsAPluginOnceForAllThreads) {
  DeviceRegistry registry = registry_of_test_plugins();
  std::vector<Device*> found(4);
  std::vector<std::thread> threads;
  for (Device*& device : found) threads.emplace_back([&] { device = &registry.find("fake"); });
  for (std::thread& t : threads) t.join();
  for (const Device* device : found) EXPECT_EQ(device, found[0]);
  EXPECT_EQ(found[0]->name(), "fake");
}

TEST(DeviceRegistry, MissingPluginSaysWhatAndWhere) {
  DeviceRegistry registry = registry_of_test_plugins();
  expect_refusal(registry, "absent", "libtutti_absent");
  expect_refusal(registry, "absent", TUTTI_TEST_PLUGINS);
  expect_refusal(registry, "absent", "TUTTI_PLUGIN_PATH");
  EXPECT_EQ(registry.find("fake").name(), "fake") << "a refusal must not spoil the registry";
}

TEST(DeviceRegistry, OtherAbiIsRefusedWithBothVersions) {
  DeviceRegistry registry = registry_of_test_plugins();
  expect_refusal(registry, "old", "device ABI 999");
  expect_refusal(registry, "old", "has " + std::to_string(kDeviceAbiVersion));
}

TEST(DeviceRegistry, LibraryWithoutTheSymbolIsRefused) {
  DeviceRegistry registry = registry_of_test_plugins();
  expect_refusal(registry, "stranger", "tutti_device_plugin");
}

TEST(DeviceRegistry, FileThatIsNoLibraryIsRefused) {
  const auto directory = std::filesystem::path(::testing::TempDir()) / "tutti_registry_test";
  std::filesystem::create_directories(directory);
  std::ofstream(directory / "libtutti_text.so") << "not a library";
  DeviceRegistry registry({directory.string()});
  expect_refusal(registry, "text", "libtutti_text.so");
  std::filesystem::remove_all(directory);
}

TEST(DeviceRegistry, NamesCannotLeaveTheDirectory) {
  DeviceRegistry registry = registry_of_test_plugins();
  for (const char* name : {"", "../fake", "fake/../fake", "Fake", "a b"})
    expect_refusal(registry, name, "not a device name");
}

TEST(DeviceRegistry, PluginPathComesBeforeTheLibrarysOwnFolder) {
  const std::vector<std::string> directories = DeviceRegistry::default_directories("/a:/b c::/d:");
  ASSERT_EQ(directories.size(), 4u);
  EXPECT_EQ(directories[0], "/a");
  EXPECT_EQ(directories[1], "/b c");
  EXPECT_EQ(directories[2], "/d");
  EXPECT_TRUE(std::filesystem::is_directory(directories[3])) << directories[3];
  EXPECT_EQ(DeviceRegistry::default_directories("").size(), 1u);
}

}  // namespace
}  // namespace tutti
