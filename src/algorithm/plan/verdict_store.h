// Verdicts on plans that outlive the process, in a folder of the user's (TUTTI_CACHE_DIR).
//
// An entry says that this very verifier has proven a plan of this very content, and with which repairs. It is found by
// the SHA-256 of both, so an edited plan or another build of Tutti finds nothing. The plan itself is never kept: it is
// always read from where the user has it. Entries carry a checksum; one that is cut off, altered or does not fit its
// plan counts for nothing and is written anew.
//
// What is believed: whoever can write to the folder could say that a racy plan is proven. So it must belong to this
// user and let nobody else in (base/private_folder.h); who can write there can replace the user's programs as well.
//
// Thread rule: const members may be called from any thread, and from any number of processes at once.
#pragma once

#include <optional>
#include <string>

#include "base/private_folder.h"
#include "base/secret.h"
#include "plan/plan.h"
#include "plan/verifier/verdict.h"
#include "tutti/config.h"

namespace tutti {

class VerdictStore {
 public:
  // `folder` of all that Tutti keeps; empty: a store that keeps nothing.
  explicit VerdictStore(const std::string& folder);

  // What has been found about `plan`, whose text has the digest `content`.
  std::optional<plan::Verdict> find(const Digest& content, const plan::Plan& plan) const;
  void keep(const Digest& content, const plan::Verdict& verdict) const;

 private:
  PrivateFolder folder_;
};

// TUTTI_CACHE_DIR, or the folder that is chosen; empty if nothing is to be kept.
std::string cache_folder(const Config& config);

}  // namespace tutti
