#include "device/nccl/find.h"

#include <dlfcn.h>
#include <link.h>

#include <vector>

#include "base/dynamic_linker.h"

namespace tutti {
namespace {

// RTLD_LOCAL: what else of the process is named like its symbols must not be bound to them. Not RTLD_DEEPBIND, which
// would part it from an allocator that the program has preloaded.
constexpr int kHow = RTLD_NOW | RTLD_LOCAL;

// Neither a library without NCCL's functions nor one that has only its name.
bool serves(void* library, IsOwnNccl is_own, std::string& why) {
  void* const function = ::dlsym(library, kSomeNcclFunction);
  if (function == nullptr) {
    why = "it has no " + std::string(kSomeNcclFunction);
  } else if (is_own != nullptr && is_own(function)) {
    why = "it is Tutti's own";
  } else {
    return true;
  }
  return false;
}

// Beside the package whose library `function` lies in: site-packages/tutti, site-packages/nvidia/nccl.
std::string in_site_packages(const void* function) {
  Dl_info info{};
  std::string here;
  if (::dladdr(function, &info) != 0 && info.dli_fname != nullptr) here = info.dli_fname;
  const std::size_t slash = here.rfind('/');
  here = slash == std::string::npos ? "." : here.substr(0, slash);
  return here.append("/../nvidia/nccl/lib/").append(kNcclFile);
}

// The files of that name that the process has loaded. One of another place may stand in front of NCCL's, as the one
// does by which programs find the library under its name, and then the linker gives no other by the name alone.
std::vector<std::string> loaded_files() {
  std::vector<std::string> files;
  const auto look = [](dl_phdr_info* info, std::size_t, void* into) {
    const std::string path = info->dlpi_name;
    if (path.ends_with(std::string("/").append(kNcclFile)))
      static_cast<std::vector<std::string>*>(into)->push_back(path);
    return 0;
  };
  ::dl_iterate_phdr(look, &files);
  return files;
}

}  // namespace

void* find_nccl(const std::string& chosen, IsOwnNccl is_own, const void* beside, std::string& problem) {
  std::string why;
  if (!chosen.empty()) {
    void* const library = ::dlopen(chosen.c_str(), kHow);
    if (library != nullptr && serves(library, is_own, why)) return library;
    problem = "TUTTI_NCCL_LIB_PATH=" + chosen + ": " + (library == nullptr ? last_dl_error() : why);
    return nullptr;
  }
  const auto attempt = [&](const std::string& file, int how) -> void* {
    void* const library = ::dlopen(file.c_str(), how);
    if (library == nullptr) {
      if ((how & RTLD_NOLOAD) == 0) problem += (problem.empty() ? "" : "; ") + last_dl_error();
      return nullptr;
    }
    if (serves(library, is_own, why)) return library;
    problem += (problem.empty() ? "" : "; ") + file + ": " + why;
    return nullptr;
  };
  if (void* const loaded = attempt(kNcclFile, kHow | RTLD_NOLOAD)) return loaded;
  for (const std::string& file : loaded_files()) {
    if (void* const loaded = attempt(file, kHow | RTLD_NOLOAD)) return loaded;
  }
  if (void* const found = attempt(kNcclFile, kHow)) return found;
  return attempt(in_site_packages(beside), kHow);
}

std::string nccl_version(int code) {
  // From 2.9 on 10000 * major + 100 * minor + patch, before 1000 * major.
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int rest = code - major * (code >= 10000 ? 10000 : 1000);
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

}  // namespace tutti
