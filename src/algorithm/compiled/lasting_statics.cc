#include "algorithm/compiled/lasting_statics.h"

#include <dlfcn.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <string_view>

#include "tutti/error.h"

namespace tutti {
namespace {

// As __cxa_atexit: 0 is success.
int registers_nothing(void (*)(void*), void*, void*) { return 0; }

// What the loader's tables say of one library. Addresses in them are absolute (glibc has added the base).
struct Tables {
  const ElfW(Sym) * symbols = nullptr;
  const char* names = nullptr;
  const ElfW(Rela) * entries[2] = {};  // of data, of functions
  std::size_t bytes[2] = {};

  explicit Tables(const ElfW(Dyn) * entry) {
    for (; entry->d_tag != DT_NULL; ++entry) {
      const auto address = entry->d_un.d_ptr;
      if (entry->d_tag == DT_SYMTAB) symbols = reinterpret_cast<const ElfW(Sym)*>(address);
      if (entry->d_tag == DT_STRTAB) names = reinterpret_cast<const char*>(address);
      if (entry->d_tag == DT_RELA) entries[0] = reinterpret_cast<const ElfW(Rela)*>(address);
      if (entry->d_tag == DT_RELASZ) bytes[0] = entry->d_un.d_val;
      if (entry->d_tag == DT_JMPREL) entries[1] = reinterpret_cast<const ElfW(Rela)*>(address);
      if (entry->d_tag == DT_PLTRELSZ) bytes[1] = entry->d_un.d_val;
    }
  }
};

// Pages that the loader has made read-only are made writable, and stay so: what they were is not known here.
void write_address(std::uintptr_t at, std::uintptr_t value) {
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  if (::mprotect(reinterpret_cast<void*>(at / page * page), page, PROT_READ | PROT_WRITE) != 0) {
    throw_system_error(ErrorKind::kUnsupported, "making the addresses of a library writable", errno);
  }
  // relaxed: another thread that is in the library calls the one function or the other.
  std::atomic_ref(*reinterpret_cast<std::uintptr_t*>(at)).store(value, std::memory_order_relaxed);
}

}  // namespace

void keep_statics_of(void* handle) {
  link_map* map = nullptr;
  if (::dlinfo(handle, RTLD_DI_LINKMAP, &map) != 0) throw_error(ErrorKind::kUnsupported, "a library without a map");
  const Tables tables(map->l_ld);
  if (tables.symbols == nullptr || tables.names == nullptr) return;
  for (int kind = 0; kind < 2; ++kind) {
    const std::size_t count = tables.bytes[kind] / sizeof(ElfW(Rela));
    for (std::size_t i = 0; i < count; ++i) {
      const ElfW(Rela)& entry = tables.entries[kind][i];
      const auto symbol = entry.r_info >> (sizeof(entry.r_info) == 8 ? 32 : 8);
      if (symbol == 0 || std::string_view(tables.names + tables.symbols[symbol].st_name) != "__cxa_atexit") continue;
      write_address(map->l_addr + entry.r_offset, reinterpret_cast<std::uintptr_t>(&registers_nothing));
    }
  }
}

}  // namespace tutti
