#include "algorithm/compiled/nvrtc.h"

#include <dirent.h>
#include <dlfcn.h>
#include <link.h>
#include <sys/stat.h>

#include <array>
#include <memory>
#include <span>
#include <utility>

#include "algorithm/compiled/embedded.h"
#include "algorithm/compiled/lasting_statics.h"
#include "tutti/error.h"

namespace tutti {
namespace {

using Program = void*;

// Sums and products are not contracted: the bits of the CPU's kernels. The log tells registers and spills.
constexpr std::array<const char*, 4> kOptions{"--std=c++20", "--fmad=false", "--device-as-default-execution-space",
                                              "--ptxas-options=-v"};
constexpr std::array<const char*, 2> kNames{"libnvrtc.so.13", "libnvrtc.so.12"};
constexpr std::array<const char*, 5> kStandard{"cstddef", "cstdint", "cstring", "string_view", "type_traits"};
constexpr const char* kStandardText = "#include \"algorithm/compiled/standard.h\"\n";

std::string folder_of(const std::string& file) {
  const std::size_t slash = file.rfind('/');
  return slash == std::string::npos ? "" : file.substr(0, slash);
}

// Folders of what the process has loaded of CUDA, and of libtutti. A wheel for CUDA 13 has all libraries in one folder,
// one for CUDA 12 a folder for each.
std::vector<std::string> folders() {
  std::vector<std::string> found;
  const auto add = [](dl_phdr_info* info, std::size_t, void* to) {
    const std::string name = info->dlpi_name != nullptr ? info->dlpi_name : "";
    auto& list = *static_cast<std::vector<std::string>*>(to);
    if (name.find("libcudart.so") != std::string::npos) {
      list.push_back(folder_of(name));
      list.push_back(folder_of(folder_of(folder_of(name))) + "/cuda_nvrtc/lib");
    }
    if (name.find("libtutti.so") != std::string::npos) {
      list.push_back(folder_of(folder_of(name)) + "/nvidia/cu13/lib");
      list.push_back(folder_of(folder_of(name)) + "/nvidia/cuda_nvrtc/lib");
    }
    return 0;
  };
  ::dl_iterate_phdr(add, &found);
  found.emplace_back();  // where the loader looks
  found.emplace_back("/usr/local/cuda/lib64");
  return found;
}

std::vector<std::string> candidates(const std::string& path) {
  if (!path.empty()) return {path};
  std::vector<std::string> list;
  for (const std::string& folder : folders()) {
    for (const char* name : kNames) list.push_back(folder.empty() ? name : folder + "/" + name);
  }
  return list;
}

// Updates of one release say the same version and make other code: 12.8.61 and 12.8.93. So the file itself is told
// apart, by what an installation changes. One that is gone by now has been replaced: then by its path alone.
std::string file_identity(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  struct stat found {};
  if (::stat(map->l_name, &found) != 0) return map->l_name;
  return std::to_string(found.st_size) + " bytes of " + std::to_string(found.st_mtim.tv_sec) + "." +
         std::to_string(found.st_mtim.tv_nsec);
}

// NVRTC asks the loader for a second library by its name alone: it finds the one that is loaded, also where that lies
// in a folder that the loader does not search.
void load_builtins(void* library) {
  link_map* map = nullptr;
  if (::dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return;
  const std::string folder = folder_of(map->l_name);
  const auto close = [](DIR* open) { ::closedir(open); };
  const std::unique_ptr<DIR, decltype(close)> entries(::opendir(folder.c_str()), close);
  while (const dirent* const entry = entries != nullptr ? ::readdir(entries.get()) : nullptr) {
    const std::string name = entry->d_name;
    if (name.starts_with("libnvrtc-builtins.so")) {
      static_cast<void>(::dlopen((folder + "/" + name).c_str(), RTLD_NOW | RTLD_LOCAL));
    }
  }
}

}  // namespace

// As of nvrtc.h, which is not needed to build.
struct Nvrtc::Functions {
  int (*version)(int* major, int* minor);
  int (*create)(Program* program, const char* source, const char* name, int headers, const char* const* texts,
                const char* const* names);
  int (*compile)(Program program, int options, const char* const* list);
  int (*log_size)(Program program, std::size_t* bytes);
  int (*log)(Program program, char* text);
  int (*cubin_size)(Program program, std::size_t* bytes);
  int (*cubin)(Program program, char* code);
  int (*destroy)(Program* program);
  const char* (*error)(int result);
};

Nvrtc Nvrtc::load(const std::string& path) {
  std::string looked;
  for (const std::string& file : candidates(path)) {
    void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      looked += (looked.empty() ? "" : ", ") + file;
      continue;
    }
    auto functions = std::make_shared<Functions>();
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(::dlsym(library, name));
      return function != nullptr;
    };
    int major = 0, minor = 0;
    if (!find(functions->version, "nvrtcVersion") || !find(functions->create, "nvrtcCreateProgram") ||
        !find(functions->compile, "nvrtcCompileProgram") || !find(functions->log_size, "nvrtcGetProgramLogSize") ||
        !find(functions->log, "nvrtcGetProgramLog") || !find(functions->cubin_size, "nvrtcGetCUBINSize") ||
        !find(functions->cubin, "nvrtcGetCUBIN") || !find(functions->destroy, "nvrtcDestroyProgram") ||
        !find(functions->error, "nvrtcGetErrorString") || functions->version(&major, &minor) != 0) {
      throw_error(ErrorKind::kUnsupported, file + " is no NVRTC of CUDA 12 or later");
    }
    keep_statics_of(library);  // a compilation may be under way while the process exits
    load_builtins(library);
    Nvrtc nvrtc;
    nvrtc.functions_ = std::move(functions);
    nvrtc.path_ = file;
    nvrtc.version_ = std::to_string(major) + "." + std::to_string(minor);
    nvrtc.identity_ = nvrtc.version_ + ", " + file_identity(library);
    return nvrtc;
  }
  throw_error(
      ErrorKind::kUnsupported,
      "NVRTC is not installed: install PyPI's nvidia-cuda-nvrtc, or name the library by TUTTI_NVRTC; looked for " +
          looked);
}

std::string_view Nvrtc::options() noexcept {
  // Never destroyed: a compilation may be under way while the process exits, and nobody has asked before.
  static const std::string& all = *new std::string([] {
    std::string text;
    for (const char* option : kOptions) text += std::string(option) + " ";
    return text;
  }());
  return all;
}

CompiledSource Nvrtc::compile(const std::string& source, const std::string& architecture,
                              const KernelSource* own) const {
  std::vector<const char*> names, texts;
  for (const EmbeddedFile& file : compiled_plan_headers()) {
    names.push_back(file.name);
    texts.push_back(file.text);
  }
  for (const char* name : kStandard) {
    names.push_back(name);
    texts.push_back(kStandardText);
  }
  static const KernelSource& nothing = *new KernelSource;  // never destroyed, as in options()
  const KernelSource& more = own != nullptr ? *own : nothing;
  for (const auto& [name, text] : more.headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  const auto check = [this](int result, const char* what) {
    if (result != 0) throw_error(ErrorKind::kUnsupported, std::string(what) + ": " + functions_->error(result));
  };
  Program program = nullptr;
  check(functions_->create(&program, source.c_str(), "plan.cu", static_cast<int>(names.size()), texts.data(),
                           names.data()),
        "nvrtcCreateProgram");
  const auto destroy = [this](Program* made) { functions_->destroy(made); };
  const std::unique_ptr<Program, decltype(destroy)> owner(&program, destroy);

  const std::string target = "--gpu-architecture=" + architecture;
  std::vector<const char*> options(kOptions.begin(), kOptions.end());
  options.push_back(target.c_str());
  for (const std::string& option : more.options) options.push_back(option.c_str());
  const int result = functions_->compile(program, static_cast<int>(options.size()), options.data());
  CompiledSource made;
  std::size_t bytes = 0;
  check(functions_->log_size(program, &bytes), "nvrtcGetProgramLogSize");
  made.log.resize(bytes);
  check(functions_->log(program, made.log.data()), "nvrtcGetProgramLog");
  while (!made.log.empty() && made.log.back() == '\0') made.log.pop_back();
  if (result != 0) {
    throw_error(ErrorKind::kUnsupported, "NVRTC " + version_ + " cannot compile for " + architecture + " (" +
                                             functions_->error(result) + "): " + made.log);
  }
  check(functions_->cubin_size(program, &bytes), "nvrtcGetCUBINSize");
  made.cubin.resize(bytes);
  check(functions_->cubin(program, made.cubin.data()), "nvrtcGetCUBIN");
  return made;
}

}  // namespace tutti
