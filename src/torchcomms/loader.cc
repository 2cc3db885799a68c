// What torchcomms looks for in the library of a backend that it loads by itself.
#include <dlfcn.h>

#include <comms/torchcomms/TorchCommFactory.hpp>
#include <string>

#include "torchcomms/backend.h"
#include "torchcomms/table.h"

namespace tutti::torchcomms {
namespace {

// A function more than a class has stands behind its last one.
struct BackendAndOne : comms::TorchCommBackend {
  virtual void last();
};
struct WorkAndOne : comms::TorchWork {
  virtual void last();
  using comms::TorchWork::markCompleted;
};
struct WindowAndOne : comms::TorchCommWindow {
  virtual void last();
};

#define TUTTI_AT(function) \
  { #function, place_of(&Class::function) }

ClassOfHeaders backend_of_headers() {
  using Class = BackendAndOne;
  return {"TorchCommBackend",
          "TorchCommFake",
          place_of(&Class::last),
          {TUTTI_AT(init),
           TUTTI_AT(finalize),
           TUTTI_AT(getRank),
           TUTTI_AT(getSize),
           TUTTI_AT(getBackendName),
           TUTTI_AT(getBackendVersion),
           TUTTI_AT(getCommName),
           TUTTI_AT(getOptions),
           TUTTI_AT(getDevice),
           TUTTI_AT(isInitialized),
           TUTTI_AT(setTimeout),
           TUTTI_AT(setHints),
           TUTTI_AT(split),
           TUTTI_AT(supportsReconfigure),
           TUTTI_AT(getInitHandle),
           TUTTI_AT(reconfigure),
           TUTTI_AT(isAbortSupported),
           TUTTI_AT(isAborted),
           TUTTI_AT(abort),
           TUTTI_AT(registerAbortHook),
           TUTTI_AT(unregisterAbortHook),
           TUTTI_AT(send),
           TUTTI_AT(recv),
           TUTTI_AT(batch_op_issue),
           TUTTI_AT(broadcast),
           TUTTI_AT(all_reduce),
           TUTTI_AT(reduce),
           TUTTI_AT(all_gather),
           TUTTI_AT(all_gather_v),
           TUTTI_AT(all_gather_single),
           TUTTI_AT(reduce_scatter),
           TUTTI_AT(reduce_scatter_v),
           TUTTI_AT(reduce_scatter_single),
           TUTTI_AT(all_to_all_single),
           TUTTI_AT(all_to_all_v_single),
           TUTTI_AT(all_to_all),
           TUTTI_AT(barrier),
           TUTTI_AT(scatter),
           TUTTI_AT(gather),
           TUTTI_AT(gather_single),
           TUTTI_AT(all_gather_p_init),
           TUTTI_AT(all_gather_p_exec),
           TUTTI_AT(all_gather_p_free),
           TUTTI_AT(tensor_register),
           TUTTI_AT(tensor_deregister),
           TUTTI_AT(supportsWindow),
           TUTTI_AT(new_window)}};
}

ClassOfHeaders work_of_headers() {
  using Class = WorkAndOne;
  return {"TorchWork",
          "TorchWorkCompleted",
          place_of(&Class::last),
          {TUTTI_AT(wait), TUTTI_AT(waitBlocking), TUTTI_AT(hostSynchronize), TUTTI_AT(getTimeout),
           TUTTI_AT(markCompleted)}};
}

// No class of torchcomms' own library implements it.
ClassOfHeaders window_of_headers() { return {"TorchCommWindow", "TorchCommWindow", place_of(&WindowAndOne::last), {}}; }

#undef TUTTI_AT

std::string differences() {
  Dl_info installed{};
  if (dladdr(reinterpret_cast<void*>(&comms::TorchCommFactory::get), &installed) == 0) return {};
  void* const library = dlopen(installed.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return {};
  std::string found;
  for (const auto& headers : {backend_of_headers(), work_of_headers(), window_of_headers()}) {
    if (found.empty()) found = difference(library, headers);
  }
  dlclose(library);
  return found;
}

// torchcomms compares it with its own, and names both where they differ.
const char* interface_version() {
  static const std::string version = [] {
    const std::string wrong = differences();
    if (wrong.empty()) return std::string(comms::TORCHCOMM_BACKEND_ABI_VERSION);
    return std::string(comms::TORCHCOMM_BACKEND_ABI_VERSION) + " of other headers than the installed torchcomms (" +
           wrong + "): build tutti with the checkout that this torchcomms was built from";
  }();
  return version.c_str();
}

}  // namespace
}  // namespace tutti::torchcomms

extern "C" __attribute__((visibility("default"))) torch::comms::DynamicLoaderInterface create_dynamic_loader_tutti() {
  return {
      []() -> torch::comms::TorchCommBackend* { return new tutti::torchcomms::TorchCommTutti; },
      [](torch::comms::TorchCommBackend* communicator) { delete communicator; },
      &tutti::torchcomms::interface_version,
  };
}
