// An algorithm of asking_plugin.cc, whose path is ASKING_PLUGIN.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tutti/user_algorithm.h"

namespace tutti::test {

// The one that `function` makes, or null; from here on the plug-in asks `ask(rank, step)`.
inline UserAlgorithmPtr asking_algorithm(const std::string& function, void (*ask)(int, int)) {
  void* const object = ::dlopen(ASKING_PLUGIN, RTLD_NOW | RTLD_LOCAL);
  EXPECT_NE(object, nullptr) << ::dlerror();
  if (object == nullptr) return nullptr;
  *static_cast<void (**)(int, int)>(::dlsym(object, "asking_plugin_asks")) = ask;
  const auto all = plugin_algorithms(ASKING_PLUGIN, "asking", nullptr);
  const auto found = std::ranges::find(all, function, &PluginAlgorithm::function);
  EXPECT_NE(found, all.end());
  return found != all.end() ? found->algorithm : nullptr;
}

}  // namespace tutti::test
