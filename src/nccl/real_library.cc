#include "nccl/real_library.h"

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "device/nccl/find.h"
#include "nccl/settings.h"

namespace tutti::nccl {
namespace {

// The base address of the file that `address` lies in, and its path.
const void* file_of(const void* address, std::string* path = nullptr) {
  Dl_info info{};
  if (address == nullptr || ::dladdr(address, &info) == 0) return nullptr;
  if (path != nullptr && info.dli_fname != nullptr) *path = info.dli_fname;
  return info.dli_fbase;
}

bool is_this_library(const void* address) { return file_of(address) == file_of(reinterpret_cast<const void*>(&real)); }

// What the real one calls by its public names comes here and is passed on (InReal).
void* find_library(std::string& problem) {
  if (settings().library.empty()) {
    const void* const next = ::dlsym(RTLD_NEXT, kSomeNcclFunction);
    if (next != nullptr && !is_this_library(next)) return RTLD_NEXT;
  }
  return find_nccl(settings().library, &is_this_library, reinterpret_cast<const void*>(&real), problem);
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
  if (made->ncclGetVersion(&version) == ncclSuccess) made->version = nccl_version(version);
  return made;
}

std::atomic<const Real*> found{nullptr};

// Without a destructor: those of the program's threads and of its static objects come here, too. NCCL's is as long.
struct LastError {
  std::array<char, 1024> text;
  bool ours;
};
constinit thread_local LastError last{};
static_assert(std::is_trivially_destructible_v<LastError>);

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

void set_last_error(const std::string& text) noexcept {
  last.text[text.copy(last.text.data(), last.text.size() - 1)] = '\0';
  last.ours = true;
}

void clear_last_error() noexcept { last.ours = false; }

const char* last_error() noexcept { return last.ours ? last.text.data() : nullptr; }

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
