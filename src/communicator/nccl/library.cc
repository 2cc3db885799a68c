#include "communicator/nccl/library.h"

#include <dlfcn.h>

#include "device/nccl/find.h"

namespace tutti {
namespace {

ErrorKind kind_of(ncclResult_t result) noexcept {
  switch (result) {
    case ncclInvalidArgument:
    case ncclInvalidUsage:
      return ErrorKind::kInvalidArgument;
    case ncclRemoteError:
      return ErrorKind::kPeerLost;
    case ncclTimeout:
      return ErrorKind::kTimeout;
    default:
      return ErrorKind::kInternal;
  }
}

NcclLibrary load(const std::string& chosen) {
  NcclLibrary made;
  void* const library = find_nccl(chosen, nullptr, reinterpret_cast<const void*>(&nccl_library), made.problem);
  if (library == nullptr) return made;
  made.problem.clear();
  const char* missing = nullptr;
#define TUTTI_NCCL_FIND(result, name, parameters)                             \
  made.name = reinterpret_cast<decltype(made.name)>(::dlsym(library, #name)); \
  if (made.name == nullptr && missing == nullptr) missing = #name;
  TUTTI_NCCL_GROUP_FUNCTIONS(TUTTI_NCCL_FIND)
#undef TUTTI_NCCL_FIND
  int version = 0;
  if (made.ncclGetVersion != nullptr && made.ncclGetVersion(&version) == ncclSuccess) {
    made.version = nccl_version(version);
  }
  if (missing != nullptr) made.problem = "NCCL " + made.version + " has no " + missing;
  return made;
}

}  // namespace

const NcclLibrary& nccl_library(const std::string& chosen) {
  static const NcclLibrary* const library = new NcclLibrary(load(chosen));
  return *library;
}

Error nccl_error(const NcclLibrary& nccl, ncclResult_t result, const std::string& what) {
  std::string text = what;
  text.append(": ").append(nccl.ncclGetErrorString(result));
  // Of the process, whatever the communicator.
  const char* const last = nccl.ncclGetLastError(nullptr);
  if (last != nullptr && *last != '\0') text.append(" (").append(last).append(")");
  return {kind_of(result), text};
}

}  // namespace tutti
