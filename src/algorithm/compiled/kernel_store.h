// Compiled plans that outlive the process, in a folder of the user's (TUTTI_CACHE_DIR).
//
// An entry is found by the SHA-256 of all that it was made of: source, headers, options, architecture and the
// compiler (Nvrtc::identity()). It carries a checksum; one that is cut off or altered counts for nothing and is written
// anew. Who may write there is believed, as with verdicts (plan/verdict_store.h).
//
// Thread rule: const members may be called from any thread, and from any number of processes at once.
#pragma once

#include <optional>
#include <string>

#include "base/private_folder.h"

namespace tutti {

class KernelStore {
 public:
  // `folder` of all that Tutti keeps; empty: a store that keeps nothing.
  explicit KernelStore(const std::string& folder);

  // The name of what `source` becomes.
  static std::string key(const std::string& source, const std::string& architecture, const std::string& compiler);

  std::optional<std::string> find(const std::string& key) const;
  void keep(const std::string& key, const std::string& cubin) const;

 private:
  PrivateFolder folder_;
};

}  // namespace tutti
