#include "algorithm/compiled/kernel_store.h"

#include "algorithm/compiled/embedded.h"
#include "algorithm/compiled/nvrtc.h"
#include "base/secret.h"

namespace tutti {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::size_t kChecksumBytes = 64;  // hexadecimal, before the cubin

std::string file_of(const std::string& key) { return key + ".cubin"; }

}  // namespace

KernelStore::KernelStore(const std::string& folder) {
  if (!folder.empty()) folder_ = PrivateFolder::open(folder + "/kernels");
}

std::string KernelStore::key(const std::string& source, const std::string& architecture, const std::string& compiler) {
  std::string all = hexadecimal(sha256(source)) + " " + architecture + " " + compiler + " ";
  all += Nvrtc::options();
  for (const EmbeddedFile& file : compiled_plan_headers()) {
    all += std::string("\n") + file.name + " " + hexadecimal(sha256(file.text));
  }
  return hexadecimal(sha256(all));
}

std::optional<std::string> KernelStore::find(const std::string& key) const {
  std::optional<std::string> entry = folder_.read(file_of(key), kMostBytes);
  if (!entry || entry->size() <= kChecksumBytes) return std::nullopt;
  std::string cubin = entry->substr(kChecksumBytes);
  if (hexadecimal(sha256(key + cubin)) != entry->substr(0, kChecksumBytes)) return std::nullopt;
  return cubin;
}

void KernelStore::keep(const std::string& key, const std::string& cubin) const {
  if (folder_) folder_.write(file_of(key), hexadecimal(sha256(key + cubin)) + cubin);
}

}  // namespace tutti
