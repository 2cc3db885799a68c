// What the dynamic linker says. Thread rule: of the calling thread.
#pragma once

#include <dlfcn.h>

#include <string>

namespace tutti {

// Why the last dlopen() or dlsym() on this thread has failed.
inline std::string last_dl_error() {
  const char* const text = ::dlerror();
  return text != nullptr ? text : "unknown error of the dynamic linker";
}

}  // namespace tutti
