#include "nccl/real_library.h"

#include <dlfcn.h>
#include <link.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "nccl/settings.h"

namespace tutti::nccl {
namespace {

constexpr const char* kFile = "libnccl.so.2";
// Every NCCL since 2.4 has it.
constexpr const char* kSomeFunction = "ncclGetVersion";

// The base address of the file that `address` lies in, and its path.
const void* file_of(const void* address, std::string* path = nullptr) {
  Dl_info info{};
  if (address == nullptr || ::dladdr(address, &info) == 0) return nullptr;
  if (path != nullptr && info.dli_fname != nullptr) *path = info.dli_fname;
  return info.dli_fbase;
}

std::string last_dl_error() {
  const char* const text = ::dlerror();
  return text != nullptr ? text : "unknown error of the dynamic linker";
}

bool is_this_library(const void* address) { return file_of(address) == file_of(reinterpret_cast<const void*>(&real)); }

// Neither a library without NCCL's functions nor this one under another name.
bool serves(void* library, std::string& why) {
  void* const function = ::dlsym(library, kSomeFunction);
  if (function == nullptr) {
    why = "it has no " + std::string(kSomeFunction);
  } else if (is_this_library(function)) {
    why = "it is Tutti's own";
  } else {
    return true;
  }
  return false;
}

// Beside the package that this library is installed in: site-packages/tutti, site-packages/nvidia/nccl.
std::string in_site_packages() {
  std::string here;
  file_of(reinterpret_cast<const void*>(&real), &here);
  const std::size_t slash = here.rfind('/');
  return (slash == std::string::npos ? std::string(".") : here.substr(0, slash)) + "/../nvidia/nccl/lib/" + kFile;
}

// The files of that name that the process has loaded. One of another place may stand in front of NCCL's, as the one
// does by which programs find this library under the name, and then the linker gives no other by the name alone.
std::vector<std::string> loaded_files() {
  std::vector<std::string> files;
  const auto look = [](dl_phdr_info* info, std::size_t, void* into) {
    const std::string path = info->dlpi_name;
    if (path.ends_with("/" + std::string(kFile))) static_cast<std::vector<std::string>*>(into)->push_back(path);
    return 0;
  };
  ::dl_iterate_phdr(look, &files);
  return files;
}

void* find_library(std::string& problem) {
  // RTLD_LOCAL: what else of the process is named like its symbols must not be bound to them. Not RTLD_DEEPBIND, which
  // would part it from an allocator that the program has preloaded; what it calls by its public names comes here and
  // is passed on (InReal).
  constexpr int kHow = RTLD_NOW | RTLD_LOCAL;
  const std::string& chosen = settings().library;
  if (!chosen.empty()) {
    void* const library = ::dlopen(chosen.c_str(), kHow);
    std::string why;
    if (library == nullptr) {
      problem = "TUTTI_NCCL_LIB_PATH=" + chosen + ": " + last_dl_error();
    } else if (!serves(library, why)) {
      problem = "TUTTI_NCCL_LIB_PATH=" + chosen + ": " + why;
    } else {
      return library;
    }
    return nullptr;
  }
  const void* const next = ::dlsym(RTLD_NEXT, kSomeFunction);
  if (next != nullptr && !is_this_library(next)) return RTLD_NEXT;
  std::string why;
  const auto attempt = [&](const std::string& file, int how) -> void* {
    void* const library = ::dlopen(file.c_str(), how);
    if (library == nullptr) {
      if ((how & RTLD_NOLOAD) == 0) problem += (problem.empty() ? "" : "; ") + last_dl_error();
      return nullptr;
    }
    if (serves(library, why)) return library;
    problem += (problem.empty() ? "" : "; ") + file + ": " + why;
    return nullptr;
  };
  if (void* const loaded = attempt(kFile, kHow | RTLD_NOLOAD)) return loaded;
  for (const std::string& file : loaded_files()) {
    if (void* const loaded = attempt(file, kHow | RTLD_NOLOAD)) return loaded;
  }
  if (void* const found = attempt(kFile, kHow)) return found;
  return attempt(in_site_packages(), kHow);
}

std::string version_text(int code) {
  // From 2.9 on 10000 * major + 100 * minor + patch, before 1000 * major.
  const int major = code >= 10000 ? code / 10000 : code / 1000;
  const int rest = code - major * (code >= 10000 ? 10000 : 1000);
  return std::to_string(major) + "." + std::to_string(rest / 100) + "." + std::to_string(rest % 100);
}

std::unique_ptr<const Real> load() {
  auto made = std::make_unique<Real>();
  void* const library = find_library(made->problem);
  if (library == nullptr) {
    made->problem = "no NCCL to pass calls on to (" + made->problem + "): name it in TUTTI_NCCL_LIB_PATH";
    return made;
  }
  made->problem.clear();
#define TUTTI_NCCL_FIND(result, name, parameters, arguments) \
  made->name = reinterpret_cast<decltype(made->name)>(::dlsym(library, #name));
  TUTTI_NCCL_FUNCTIONS(TUTTI_NCCL_FIND)
#undef TUTTI_NCCL_FIND
  file_of(reinterpret_cast<const void*>(made->ncclGetVersion), &made->path);
  int version = 0;
  if (made->ncclGetVersion(&version) == ncclSuccess) made->version = version_text(version);
  return made;
}

std::atomic<const Real*> found{nullptr};

struct LastError {
  std::string text;
  bool ours = false;
};
LastError& last() {
  static thread_local LastError value;
  return value;
}

}  // namespace

thread_local int InReal::depth_ = 0;

bool real_is_known() noexcept { return found.load(std::memory_order_acquire) != nullptr; }

const Real& real() {
  // acquire: pairs with the release below.
  if (const Real* const here = found.load(std::memory_order_acquire)) return *here;
  // Loading runs the library's constructors, which may call functions of that name: on this thread, which has the lock.
  if (InReal::here()) {
    static const Real* const loading = [] {
      auto* const none = new Real;
      none->problem = "NCCL was called while it was being loaded";
      return none;
    }();
    return *loading;
  }
  static std::mutex one_at_a_time;
  const std::lock_guard lock(one_at_a_time);
  if (const Real* const here = found.load(std::memory_order_acquire)) return *here;
  const InReal inside;
  const Real* const made = load().release();
  // release: publishes the pointers to those who take no lock.
  found.store(made, std::memory_order_release);
  return *made;
}

void set_last_error(std::string text) noexcept {
  last().text = std::move(text);
  last().ours = true;
}

void clear_last_error() noexcept { last().ours = false; }

const char* last_error() noexcept { return last().ours ? last().text.c_str() : nullptr; }

ncclResult_t missing(const char* name) noexcept {
  const Real& library = real();
  if (!library.problem.empty()) {
    set_last_error("tutti: " + library.problem);
    return ncclSystemError;
  }
  set_last_error("tutti: NCCL " + library.version + " (" + library.path + ") has no " + name);
  return ncclInvalidUsage;
}

}  // namespace tutti::nccl
