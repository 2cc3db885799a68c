// Preloaded into a rank: operator new that is refused where a test says so, to Tutti's own libraries alone.
//
// Whose allocation it is says the place it is called from: the first caller that is not the C++ library, which grows
// strings and exceptions on behalf of others. Python's and torch's own are never refused, nor those of pybind11 and
// nanobind inside Tutti's modules: they leave half an object where memory is wanting, or end the process. One refusal
// at a time; it is armed and disarmed by one thread, the others may allocate meanwhile.
#include <execinfo.h>
#include <link.h>
#include <unistd.h>
#include <unwind.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

namespace {

struct Range {
  std::uintptr_t begin = 0, end = 0;
};
struct Ranges {
  Range of[32];
  int count = 0;

  void add(Range range) noexcept {
    if (count < 32) of[count++] = range;
  }
  bool hold(std::uintptr_t address) const noexcept {
    for (int i = 0; i < count; ++i) {
      if (address >= of[i].begin && address < of[i].end) return true;
    }
    return false;
  }
};

// They change while nothing is armed.
Ranges tuttis, faces, passed, pythons;
bool from_there_on = false, any_thread = false;
long first = 0;

// seq_cst throughout: a test.
std::atomic<bool> armed{false};
std::atomic<long> so_far{0}, refusals{0};
thread_local bool counted_thread = false;

Range code_of(const dl_phdr_info& object) noexcept {
  Range range;
  for (int i = 0; i < object.dlpi_phnum; ++i) {
    const auto& part = object.dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    range = {object.dlpi_addr + part.p_vaddr, object.dlpi_addr + part.p_vaddr + part.p_memsz};
  }
  return range;
}

int look(dl_phdr_info* object, std::size_t, void*) noexcept {
  const char* const name = object->dlpi_name;
  // Not tutti/_core, where nanobind converts arguments and results.
  if (std::strstr(name, "/libtutti") != nullptr || std::strstr(name, "/tutti/_torch") != nullptr) {
    tuttis.add(code_of(*object));
  }
  if (std::strstr(name, "/tutti/_torch") != nullptr) faces.add(code_of(*object));
  if (std::strstr(name, "/libstdc++") != nullptr || std::strstr(name, "/librefuse_memory") != nullptr) {
    passed.add(code_of(*object));
  }
  // The nameless one is the interpreter, which may hold Python itself.
  if (*name == 0 || std::strstr(name, "/libtorch_python") != nullptr || std::strstr(name, "/libpython") != nullptr) {
    pythons.add(code_of(*object));
  }
  return 0;
}

struct Callers {
  std::uintptr_t first = 0, last = 0;  // the last: who has called Tutti
};

_Unwind_Reason_Code step(_Unwind_Context* frame, void* to) noexcept {
  const std::uintptr_t address = _Unwind_GetIP(frame);
  if (passed.hold(address)) return _URC_NO_REASON;
  auto& callers = *static_cast<Callers*>(to);
  if (callers.first == 0) callers.first = address;
  callers.last = address;
  return tuttis.hold(address) ? _URC_NO_REASON : _URC_NORMAL_STOP;
}

// What pybind11 allocates in tutti/_torch cannot be told from what the methods that it calls there do: neither counts.
bool is_tuttis(std::uintptr_t caller) noexcept {
  if (!passed.hold(caller) && !tuttis.hold(caller)) return false;
  Callers callers;
  _Unwind_Backtrace(&step, &callers);
  const bool by_pybind = faces.hold(callers.first) && pythons.hold(callers.last);
  return tuttis.hold(callers.first) && !by_pybind;
}

bool refuses(void* caller) noexcept {
  if (!armed.load() || (!any_thread && !counted_thread)) return false;
  if (!is_tuttis(reinterpret_cast<std::uintptr_t>(caller))) return false;
  const long n = so_far.fetch_add(1) + 1;
  if (from_there_on ? n < first : n != first) return false;
  refusals.fetch_add(1);
  return true;
}

void* allocate(std::size_t bytes, void* caller) noexcept {
  return refuses(caller) ? nullptr : std::malloc(bytes != 0 ? bytes : 1);
}

void* allocate(std::size_t bytes, std::align_val_t alignment, void* caller) noexcept {
  const auto align = static_cast<std::size_t>(alignment);
  return refuses(caller) ? nullptr : std::aligned_alloc(align, (bytes + align - 1) / align * align);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

// Where the process was ended, for whoever reads the test's output.
[[noreturn]] static void say_where() {
  armed.store(false);
  std::signal(SIGABRT, SIG_DFL);
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  std::abort();
}

// The n-th allocation, counted from 1, is refused, or all from there on: of this thread or of any.
extern "C" void refuse_memory(long n, int all_from_there, int of_any_thread) {
  tuttis = {};
  faces = {};
  passed = {};
  pythons = {};
  dl_iterate_phdr(&look, nullptr);
  counted_thread = true;
  first = n;
  from_there_on = all_from_there != 0;
  any_thread = of_any_thread != 0;
  so_far.store(0);
  refusals.store(0);
  std::set_terminate(&say_where);
  for (const int fatal : {SIGSEGV, SIGABRT}) std::signal(fatal, [](int) { say_where(); });
  armed.store(true);
}

extern "C" void refuse_no_memory() { armed.store(false); }
extern "C" long refused_allocations() { return refusals.load(); }
extern "C" long counted_allocations() { return so_far.load(); }

#define CALLER __builtin_return_address(0)
void* operator new(std::size_t bytes) { return or_throw(allocate(bytes, CALLER)); }
void* operator new[](std::size_t bytes) { return or_throw(allocate(bytes, CALLER)); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, CALLER); }
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept { return allocate(bytes, CALLER); }
void* operator new(std::size_t bytes, std::align_val_t align) { return or_throw(allocate(bytes, align, CALLER)); }
void* operator new[](std::size_t bytes, std::align_val_t align) { return or_throw(allocate(bytes, align, CALLER)); }
void* operator new(std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate(bytes, align, CALLER);
}
void* operator new[](std::size_t bytes, std::align_val_t align, const std::nothrow_t&) noexcept {
  return allocate(bytes, align, CALLER);
}
