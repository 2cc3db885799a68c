#include "torchcomms/table.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdlib>
#include <memory>

namespace tutti::torchcomms {
namespace {

// Before the functions, a table holds an offset and a pointer to the class's type information.
constexpr std::size_t kBefore = 2;

struct Table {
  void* const* functions = nullptr;  // null: the library exports none
  std::size_t size = 0;
};

Table table_of(void* library, const std::string& name) {
  const std::string symbol = "_ZTVN5torch5comms" + std::to_string(name.size()) + name + "E";
  const auto* const words = static_cast<void* const*>(dlsym(library, symbol.c_str()));
  Dl_info about{};
  const ElfW(Sym)* entry = nullptr;
  if (words == nullptr ||
      dladdr1(words, &about, reinterpret_cast<void**>(const_cast<ElfW(Sym)**>(&entry)), RTLD_DL_SYMENT) == 0) {
    return {};
  }
  if (entry == nullptr || about.dli_saddr != words || entry->st_size < kBefore * sizeof(void*)) return {};
  return {words + kBefore, entry->st_size / sizeof(void*) - kBefore};
}

// "TorchCommFake::send" of a function that is exported; else empty.
std::string name_of(void* function) {
  Dl_info about{};
  if (dladdr(function, &about) == 0 || about.dli_saddr != function || about.dli_sname == nullptr) return {};
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> whole(
      abi::__cxa_demangle(about.dli_sname, nullptr, nullptr, &status), &std::free);
  if (whole == nullptr) return {};
  std::string path(whole.get());
  path.resize(std::min(path.find_first_of("[("), path.size()));  // "text[abi:cxx11](...)"
  const std::string space = "torch::comms::";
  return path.compare(0, space.size(), space) == 0 ? path.substr(space.size()) : std::string();
}

}  // namespace

std::string difference(void* library, const ClassOfHeaders& headers) {
  const Table own = table_of(library, headers.name);
  if (own.functions != nullptr && own.size != headers.size) {
    return headers.name + " has " + std::to_string(own.size) + " virtual functions there, " +
           std::to_string(headers.size) + " in the headers";
  }
  const Table named = table_of(library, headers.implementation);
  for (const auto& [name, place] : headers.functions) {
    if (place >= named.size) continue;
    void* const function = named.functions[place];
    // Functions that do the same may be one function with one of their names, in one class or in several.
    if (std::count(named.functions, named.functions + named.size, function) > 1) continue;
    const std::string there = name_of(function);
    for (const std::string& of : {headers.name, headers.implementation}) {
      if (there.compare(0, of.size() + 2, of + "::") != 0 || there.substr(of.size() + 2) == name) continue;
      return headers.name + " has '" + there.substr(of.size() + 2) + "' there where the headers have '" + name + "'";
    }
  }
  return {};
}

}  // namespace tutti::torchcomms
