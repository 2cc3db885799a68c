#include "algorithm/plan/verdict_store.h"

#include <algorithm>

#include "plan/verifier/verdict_text.h"

namespace tutti {
namespace {

constexpr std::size_t kMostBytes = std::size_t{64} << 20;
constexpr std::string_view kChecksum = "sha256 ";

std::string file_of(const Digest& content) {
  return hexadecimal(sha256(std::string(plan::verifier_build()) + "\n" + hexadecimal(content))) + ".verdict";
}

std::string checksum_line(std::string_view text) { return std::string(kChecksum) + hexadecimal(sha256(text)) + "\n"; }

bool has(std::size_t size, std::int32_t index) { return index >= 0 && static_cast<std::size_t>(index) < size; }

bool fits(const plan::Repair& repair, const plan::Plan& plan) {
  if (repair.kind == plan::Repair::Kind::kSize) return repair.bytes >= 0;
  if (!has(plan.ranks.size(), repair.rank)) return false;
  const plan::Rank& rank = plan.ranks[static_cast<std::size_t>(repair.rank)];
  if (!has(rank.blocks.size(), repair.block)) return false;
  const plan::ThreadBlock& block = rank.blocks[static_cast<std::size_t>(repair.block)];
  if (repair.kind == plan::Repair::Kind::kFlush) return repair.channel >= 0;
  if (!has(block.operations.size(), repair.op)) return false;
  return repair.inner < 0 || has(block.operations[static_cast<std::size_t>(repair.op)].body.size(), repair.inner);
}

}  // namespace

VerdictStore::VerdictStore(const std::string& folder) {
  if (!folder.empty()) folder_ = PrivateFolder::open(folder + "/verdicts");
}

std::optional<plan::Verdict> VerdictStore::find(const Digest& content, const plan::Plan& plan) const {
  const std::optional<std::string> entry = folder_.read(file_of(content), kMostBytes);
  if (!entry) return std::nullopt;
  const std::size_t end = entry->rfind(kChecksum);
  if (end == std::string::npos) return std::nullopt;
  const std::string_view text = std::string_view(*entry).substr(0, end);
  if (std::string_view(*entry).substr(end) != checksum_line(text)) return std::nullopt;
  std::optional<plan::Verdict> verdict = plan::read_verdict(text, hexadecimal(content));
  if (!verdict || !std::all_of(verdict->repairs.begin(), verdict->repairs.end(),
                               [&](const plan::Repair& repair) { return fits(repair, plan); })) {
    return std::nullopt;
  }
  return verdict;
}

void VerdictStore::keep(const Digest& content, const plan::Verdict& verdict) const {
  if (!folder_ || verdict.outcome == plan::Outcome::kRejected) return;
  std::string entry = plan::write_verdict(verdict, hexadecimal(content));
  entry += checksum_line(entry);
  folder_.write(file_of(content), entry);
}

std::string cache_folder(const Config& config) {
  if (config.cache_dir == "none") return {};
  return config.cache_dir.empty() ? config.user_cache : config.cache_dir;
}

}  // namespace tutti
